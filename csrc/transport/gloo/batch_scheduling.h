// BatchScheduling: while it lives, threads that the calling one starts do not interrupt others when
// they are woken (SCHED_BATCH): they run on an idle core at once, else when the one there sleeps or
// has had its turn. On the stack, on one thread.
#pragma once

#include <sched.h>

namespace mydist {

class BatchScheduling {
 public:
  // Nothing where the thread has been given a policy of its own, or the kernel refuses.
  BatchScheduling() {
    const sched_param parameters{};
    is_set_ = sched_getscheduler(0) == SCHED_OTHER &&
              sched_setscheduler(0, SCHED_BATCH, &parameters) == 0;
  }
  ~BatchScheduling() {
    const sched_param parameters{};
    if (is_set_) sched_setscheduler(0, SCHED_OTHER, &parameters);
  }
  BatchScheduling(const BatchScheduling&) = delete;
  BatchScheduling& operator=(const BatchScheduling&) = delete;

 private:
  bool is_set_ = false;
};

}  // namespace mydist
