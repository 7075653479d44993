// PollBackoff: how long to pause between two looks at MPI, which has no wait that a local event
// could interrupt. Pure. A short time of eager looks, then pauses doubling up to a longest one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

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

// How long the pieces of a transfer over MPI are. Pure: both ends split alike.

// Over TCP Open MPI sends up to 64 KiB at once, its header included, and asks the receiver before
// it sends more; a few pieces are there sooner. Longer ones stay whole: other networks ask earlier
// and then move all at once, and what has not been asked for piles up where a rank is late.
inline constexpr int64_t kEagerPieceBytes = (int64_t{64} << 10) - 512;
inline constexpr int64_t kMostEagerPieces = 4;

// The bytes of each piece but the last in a transfer of `bytes`; at most `limit`.
inline int64_t PieceBytes(int64_t bytes, int64_t limit) {
  return bytes <= kMostEagerPieces * kEagerPieceBytes ? std::min(kEagerPieceBytes, limit) : limit;
}

// GoodbyeGrace: how long a transfer still waits for a peer that has said goodbye, as what that one
// sent before may be on its way. Pure; owned by one call of MpiTransport::Exchange.

class GoodbyeGrace {
 public:
  explicit GoodbyeGrace(Duration grace) : grace_(grace) {}

  // `departed`: a peer that is waited for and has said goodbye; -1: none. Whether it has been
  // waited for long enough. Each peer has the whole time: it is not its fault that another one left
  // before.
  bool IsOver(int departed, TimePoint now) {
    if (departed != peer_) {
      peer_ = departed;
      end_ = now + grace_;
    }
    return departed >= 0 && now >= end_;
  }

 private:
  const Duration grace_;
  int peer_ = -1;
  TimePoint end_;
};

}  // namespace mydist
