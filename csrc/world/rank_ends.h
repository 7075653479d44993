// RankEnds: how the processes of ranks have ended, as mydistrun tells. Only a parent learns by
// which signal a process ended, so mydistrun writes it into a file in memory that the ranks of a
// host inherit: two bytes for each rank it has started. See launcher/rank_ends.py. Used by the
// thread that drives the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/export.h"

namespace mydist {

struct RankEnd {
  bool by_signal = false;
  int number = 0;  // Of the signal, or the exit code.

  // Of one by a signal, a sentence: "SIGKILL (signal 9) ended rank 2."
  MYDIST_EXPORT std::string Text(int rank) const;
  bool operator==(const RankEnd&) const = default;
};

class MYDIST_EXPORT RankEnds {
 public:
  // mydistrun may see an end a moment later than a peer does. Waits come to no more in all.
  static constexpr std::chrono::milliseconds kGrace{100};

  RankEnds() = default;  // Nothing is told.
  // `descriptor` stays the caller's; -1: nothing is told. `started[r]`: the rank that mydistrun
  // started as rank r of this job; empty: r itself.
  RankEnds(int descriptor, std::vector<int> started);

  // Nothing: the rank runs, or its end is not known.
  std::optional<RankEnd> Find(int rank) const;
  // The first of these ranks whose end is known. Waits for mydistrun to tell of one of them.
  std::optional<int> AwaitOne(std::span<const int> ranks);

 private:
  bool IsSameFile() const;

  int descriptor_ = -1;
  uint64_t device_ = 0;  // Of the file, as the program may close a descriptor it does not know.
  uint64_t inode_ = 0;
  std::vector<int> started_;
  std::optional<TimePoint> deadline_;  // Of all waits, from the first one on.
};

}  // namespace mydist
