// DeviceLinks: all that links this rank's devices to others, of all process sets, so that it can be
// watched and ended as one.
// Owned by the executor, whose teams add and remove their links. Any thread; the links are called
// without the lock.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "algorithms/device/device_link.h"
#include "algorithms/device/device_plugin.h"
#include "algorithms/device/staging_pipeline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "memory/device/device.h"
#include "memory/device/device_memory.h"

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

// DeviceSeats: the GPUs this engine works on, each opened when the first tensor on it comes.
// Owned by the executor, used by whoever drives the engine.

// What batches on one GPU are executed with: all of them on one stream.
struct DeviceSeat {
  std::shared_ptr<Device> device;
  StreamSeat on_stream;
  DeviceMemory fusion_memory;
  std::shared_ptr<StagingPipeline> staging;  // Through the host, for whatever needs it.
  PassingMemory passing{};
  EventPointer last_batch{};  // Its end; null: it is known to be over.
};

class DeviceSeats {
 public:
  // `plugin`, where GPUs come from, may be null: there are none. `watch`: see StreamSeat.
  DeviceSeats(DevicePlugin* plugin, WaitWatch watch) : plugin_(plugin), watch_(std::move(watch)) {}
  // Waits for what is on the streams: their memory goes now.
  ~DeviceSeats();
  DeviceSeats(const DeviceSeats&) = delete;
  DeviceSeats& operator=(const DeviceSeats&) = delete;

  // Valid as long as this object.
  Result<DeviceSeat*> At(int index);
  // The GPU of a rank that has had no tensor to say so: one that it uses already, else the one that
  // goes with its number on the host.
  Result<int> Home(int local_rank) const;

  // Whether the work of all batches is known to be over. Never waits. Errors: those of Device.
  Result<bool> AreIdle();

  // See StagingPipeline::most_in_flight; of the GPU that has had most.
  int64_t MostStagedChunks() const;

 private:
  DevicePlugin* const plugin_;
  const WaitWatch watch_;
  std::map<int, DeviceSeat> seats_;
};

}  // namespace mydist
