// DeviceLinks: all that links this rank's devices to others, of all process sets, so that it can be
// watched and ended as one.
// Owned by the executor, whose teams add and remove their links. Any thread; the links are called
// without the lock.
#pragma once

#include <memory>
#include <vector>

#include "algorithms/device/device_link.h"
#include "base/mutex.h"

namespace mydist {

class DeviceLinks {
 public:
  // After an Abort the link is aborted at once.
  void Add(std::shared_ptr<DeviceLink> link) MYDIST_EXCLUDES(mutex_);
  void Remove(const DeviceLink* link) MYDIST_EXCLUDES(mutex_);
  bool empty() const MYDIST_EXCLUDES(mutex_);

  // What failed first, of any; never waits.
  Status Check() const MYDIST_EXCLUDES(mutex_);
  // All there are and all that come; see DeviceLink. Only the first `why` counts.
  void Abort(const Status& why) MYDIST_EXCLUDES(mutex_);
  // Whoever drives the engine; on all ranks, whose links are in the same order. Once one cannot be
  // closed by `deadline`, all are aborted.
  void Close(TimePoint deadline) MYDIST_EXCLUDES(mutex_);

 private:
  using List = std::vector<std::shared_ptr<DeviceLink>>;
  List Snapshot() const MYDIST_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  List links_ MYDIST_GUARDED_BY(mutex_);
  Status aborted_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist
