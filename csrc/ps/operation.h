// Operation: one call on a table, such as a push_pull, on its way to several servers. Shared by the
// caller and the lanes; lives until both have let go of it. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"

namespace mydist::ps {

class MYDIST_EXPORT Operation {
 public:
  // `text`: "push_pull of table 'fc'", for errors. `parts`: answers that it waits for.
  Operation(std::string text, int64_t parts) : text_(std::move(text)), remaining_(parts) {}

  const std::string& text() const { return text_; }

  // Reads or writes the caller's memory, which is the caller's alone once the operation is over.
  // False, without a call, when it is.
  bool Touch(const std::function<void()>& body) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (IsOver()) return false;
    body();
    return true;
  }
  // One part is complete.
  void Complete() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (IsOver()) return;
    if (--remaining_ == 0) over_.NotifyAll();
  }
  // The first error counts.
  void Fail(const Status& why) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (IsOver()) return;
    status_ = why.WithContext(text_);
    over_.NotifyAll();
  }

  bool is_over() const MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return IsOver();
  }
  // Whether it is over by then.
  bool WaitUntil(TimePoint deadline) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!IsOver()) {
      if (!over_.WaitUntil(mutex_, deadline) && Now() >= deadline) return IsOver();
    }
    return true;
  }
  // Of one that is over.
  Status status() const MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  bool IsOver() const MYDIST_REQUIRES(mutex_) { return remaining_ == 0 || !status_.ok(); }

  const std::string text_;
  mutable Mutex mutex_;
  CondVar over_;
  int64_t remaining_ MYDIST_GUARDED_BY(mutex_);
  Status status_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::ps
