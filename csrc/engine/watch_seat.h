// WatchSeat: which one thread sleeps until there is news for the engine: its own thread or, while
// callers wait again and again, whichever of them drives, so that news wakes no other thread.
// Owned by the engine. Sleep is called by the engine's thread without the engine role; TakeAgain,
// Take, SleepDriving and Leave by a caller that holds the role; Wake by anybody.
// Invariant: between TakeAgain or Take and Leave the engine's thread is not in Await.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>

#include "base/clock.h"
#include "base/mutex.h"
#include "controller/coordinator.h"

namespace mydist {

class WatchSeat {
 public:
  // `linger`: how long a drive lasts, at least, for which the engine's thread stops looking whether
  // the series is over.
  WatchSeat(Coordinator* coordinator, Duration linger)
      : coordinator_(coordinator), linger_(linger) {}

  // Until there is news, Wake is called or `deadline` passes. While a caller drives from the seat,
  // which sees to all that, it sleeps on.
  void Sleep(TimePoint deadline) MYDIST_EXCLUDES(mutex_);

  // False when the engine's thread has come back to the seat, or was never sent away.
  bool TakeAgain() MYDIST_EXCLUDES(mutex_);
  // Sends the engine's thread away. What ended its sleep may have been meant for the caller, who
  // has to look once more before it sleeps.
  void Take() MYDIST_EXCLUDES(mutex_);
  // As ControlPlane::Await.
  void SleepDriving(TimePoint deadline) { coordinator_->Await(deadline); }
  // The engine's thread comes back at `until` (not after `now`: at once) unless the seat is taken
  // again.
  void Leave(TimePoint until, TimePoint now) MYDIST_EXCLUDES(mutex_);

  // Makes a thread look after the engine: the caller that sits there, or else its own.
  void Wake() MYDIST_EXCLUDES(mutex_);

  // How often the engine's thread has woken up.
  int64_t wakeups() const { return wakeups_.load(); }

 private:
  // Of the engine's thread: until the seat is its own, or the engine needs it anyway; false then.
  bool StayAway(TimePoint deadline) MYDIST_REQUIRES(mutex_);
  void SleepAway(TimePoint until) MYDIST_REQUIRES(mutex_);

  Coordinator* const coordinator_;
  const Duration linger_;
  std::atomic<int64_t> wakeups_{0};
  Mutex mutex_;
  CondVar turned_;  // For the thread: the seat was left, or it is called.
  CondVar left_;    // For a caller: the thread has left the seat.
  // By callers, or kept for them. Changed under the mutex.
  std::atomic<bool> is_taken_{false};
  bool is_driven_ MYDIST_GUARDED_BY(mutex_) = false;  // By the caller that took it.
  uint64_t drives_ MYDIST_GUARDED_BY(mutex_) = 0;
  uint64_t seen_drives_ MYDIST_GUARDED_BY(mutex_) = 0;  // By the thread, away.
  bool is_thread_seated_ MYDIST_GUARDED_BY(mutex_) = false;
  bool is_called_ MYDIST_GUARDED_BY(mutex_) = false;
  bool sleeps_long_ MYDIST_GUARDED_BY(mutex_) = false;  // The thread, away: until it is told.
  TimePoint until_ MYDIST_GUARDED_BY(mutex_){};         // It is kept, once left.
};

// SpinBudget: how long a waiting caller goes on looking for progress before it sleeps.
// Lives on the caller's stack for one wait.

// How a caller that waits drives the engine.
struct WaitPolicy {
  // Without progress; a sleep costs about as much to wake from.
  Duration patience = std::chrono::microseconds(50);
  // In a series of waits: how long after one the next is expected, so that a message of a rank that
  // is a little earlier wakes no thread. Longest delay for news without a waiting caller.
  Duration linger = std::chrono::milliseconds(1);

  // Where ranks outnumber cores, the rank that is waited for needs the core.
  static WaitPolicy For(bool is_crowded) {
    WaitPolicy policy;
    if (is_crowded) policy.patience = Duration::zero();
    return policy;
  }
};

class SpinBudget {
 public:
  explicit SpinBudget(Duration patience) : patience_(patience) {}

  // Something has happened, or the looking begins.
  void Renew() { looks_ = 0; }

  // After a look that found nothing; false: sleep now. Gives other threads the core first.
  bool Allows() {
    if (looks_ == 0) last_progress_ = Now();
    if (++looks_ > kLooks && Now() - last_progress_ >= patience_) return false;
    sched_yield();
    return true;
  }

 private:
  // With any patience: a peer that just needs the core gets it this often.
  static constexpr int kLooks = 4;

  const Duration patience_;
  int looks_ = 0;
  TimePoint last_progress_;
};

}  // namespace mydist
