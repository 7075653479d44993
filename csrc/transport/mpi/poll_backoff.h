// PollBackoff: how long to pause between two looks at MPI, which has no wait that a local event
// could interrupt. Pure. A short time of eager looks, then pauses doubling up to a longest one.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace mydist {

class PollBackoff {
 public:
  // Looks without a pause at first, for `eager`; then pauses from kShortest to `longest`.
  PollBackoff(Duration eager, Duration longest) : eager_(eager), longest_(longest) {}

  // Something happened at `now`: be eager again.
  void Reset(TimePoint now) {
    eager_until_ = now + eager_;
    pause_ = kShortest;
  }

  // The pause to make after a look at `now` that found nothing; zero: only yield the CPU.
  Duration Next(TimePoint now) {
    if (now < eager_until_) return Duration::zero();
    const Duration pause = pause_;
    pause_ = std::min(pause_ * 2, longest_);
    return std::min(pause, longest_);
  }

 private:
  static constexpr Duration kShortest = std::chrono::microseconds(20);

  const Duration eager_;
  const Duration longest_;
  TimePoint eager_until_{};
  Duration pause_ = kShortest;
};

}  // namespace mydist
