// Watchdog: whether a wait for other ranks in the middle of a collective goes on. The engine has
// it; transports, and what else waits for peers, ask it.
#pragma once

#include <chrono>
#include <span>

#include "base/clock.h"
#include "base/status.h"

namespace mydist {

class Watchdog {
 public:
  virtual ~Watchdog() = default;

  // A wait that began at `begin` has not ended. `peers`: the ranks of the job that it waits for;
  // none: not known. OK: wait on, and ask again after kLookInterval. Else the error that ends the
  // wait: the ranks are out of step then. Never blocks. By the thread that drives the engine.
  virtual Status Look(TimePoint begin, std::span<const int> peers) = 0;

  // The error with what can be found out about the ranks that it blames, for the farewell to other
  // ranks, and before the connections go over which these may tell it. May wait for a moment. By
  // the same thread.
  virtual Status LocateForOthers(const Status& error) { return error; }
};

// How long a wait goes on before it asks, and from one time to the next. Other ranks rely on it: a
// rank that waits answers their questions when it asks.
inline constexpr std::chrono::milliseconds kLookInterval{50};

// WatchedWait: when one wait has to ask next. On the stack of the wait.
class WatchedWait {
 public:
  // `watchdog` may be null: then the wait is not bounded.
  explicit WatchedWait(Watchdog* watchdog) : watchdog_(watchdog) {}

  TimePoint begin() const { return begin_; }
  TimePoint next_look() const { return watchdog_ == nullptr ? kNever : next_look_; }
  bool IsDue(TimePoint now) const { return watchdog_ != nullptr && now >= next_look_; }
  // Call it when due.
  Status Look(std::span<const int> peers, TimePoint now) {
    next_look_ = now + kLookInterval;
    return watchdog_->Look(begin_, peers);
  }
  // Something has come: the wait for the rest is another one.
  void Restart(TimePoint now) {
    begin_ = now;
    next_look_ = now + kLookInterval;
  }

 private:
  Watchdog* const watchdog_;
  TimePoint begin_ = Now();
  TimePoint next_look_ = begin_ + kLookInterval;
};

}  // namespace mydist
