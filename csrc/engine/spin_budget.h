// SpinBudget: how long a waiting caller goes on looking for progress before it sleeps.
// Lives on the caller's stack for one wait.
#pragma once

#include <sched.h>

#include <chrono>

#include "base/clock.h"

namespace mydist {

// How a caller that waits drives the engine.
struct WaitPolicy {
  // Without progress; a sleep costs about as much to wake from.
  Duration patience = std::chrono::microseconds(50);
  // In a series of waits: how long after one the next is expected, so that a message of a rank that
  // is a little earlier wakes nobody. Longest delay for news that nobody waits for.
  Duration linger = std::chrono::milliseconds(1);

  // Where ranks outnumber cores, whoever is waited for needs the core.
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
