#include "engine/watch_seat.h"

#include <algorithm>
#include <utility>

namespace mydist {

void WatchSeat::Sleep(TimePoint deadline) {
  for (bool is_own = false; !is_own;) {
    {
      MutexLock lock(mutex_);
      if (!StayAway(deadline)) return;
      is_thread_seated_ = true;
    }
    coordinator_->Await(deadline);
    wakeups_.fetch_add(1);
    MutexLock lock(mutex_);
    is_thread_seated_ = false;
    is_own = !is_taken_.load();
    if (!is_own) left_.NotifyOne();
  }
}

bool WatchSeat::StayAway(TimePoint deadline) {
  while (is_taken_.load()) {
    const TimePoint now = Now();
    if (std::exchange(is_called_, false)) {
      is_taken_.store(is_driven_);
      return false;
    }
    if (is_driven_) {
      // Short drives follow each other: a caller that leaves then need not tell.
      const bool is_long = std::exchange(seen_drives_, drives_) == drives_;
      SleepAway(is_long ? kNever : now + linger_);
    } else if (now >= until_) {
      is_taken_.store(false);
    } else if (now >= deadline) {
      return false;
    } else {
      SleepAway(std::min(deadline, until_));
    }
  }
  is_called_ = false;
  return true;
}

void WatchSeat::SleepAway(TimePoint until) {
  sleeps_long_ = until == kNever;
  turned_.WaitUntil(mutex_, until);
  sleeps_long_ = false;
  wakeups_.fetch_add(1);
}

bool WatchSeat::TakeAgain() {
  if (!is_taken_.load()) return false;
  MutexLock lock(mutex_);
  is_driven_ = is_taken_.load();
  if (is_driven_) ++drives_;
  return is_driven_;
}

void WatchSeat::Take() {
  MutexLock lock(mutex_);
  is_taken_.store(true);
  is_driven_ = true;
  ++drives_;
  if (is_thread_seated_) coordinator_->Wake();
  while (is_thread_seated_) left_.Wait(mutex_);
}

void WatchSeat::Leave(TimePoint until, TimePoint now) {
  MutexLock lock(mutex_);
  is_driven_ = false;
  until_ = until;
  if (sleeps_long_ || until <= now) turned_.NotifyOne();
}

void WatchSeat::Wake() {
  coordinator_->Wake();
  if (!is_taken_.load()) return;
  MutexLock lock(mutex_);
  if (!is_taken_.load() || is_driven_) return;
  is_called_ = true;
  turned_.NotifyOne();
}

}  // namespace mydist
