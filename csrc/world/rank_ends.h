// RankEnds: how the processes of ranks have ended. Linux tells it to the parent, so mydistrun
// writes it into a file in memory that the ranks of a host inherit: two bytes for each rank it has
// started (launcher/rank_ends.py). Under other launchers the kernel is asked, about the ranks of
// this host. Used by the thread that drives the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/process.h"

namespace mydist {

// A sentence: "SIGKILL (signal 9) ended rank 2."
MYDIST_EXPORT std::string EndText(const ProcessEnd& end, int rank);

class MYDIST_EXPORT RankEnds {
 public:
  // A peer may see that a rank is lost a moment before its end is told. Waits come to no more in
  // all.
  static constexpr std::chrono::milliseconds kGrace{100};

  RankEnds() = default;  // Nothing is told.
  // As mydistrun tells. `descriptor` stays the caller's. `started[r]`: the rank that mydistrun
  // started as rank r of this job; empty: r itself.
  RankEnds(int descriptor, std::vector<int> started);
  // As the kernel tells. `pids`: of each rank, 0 where this process does not see it.
  explicit RankEnds(std::span<const int64_t> pids);

  // Whether mydistrun tells, of the ranks of all hosts.
  bool has_file() const { return file_.has_value(); }
  // Nothing: the rank runs, or its end is not known.
  std::optional<ProcessEnd> Find(int rank) const;
  // The first of these ranks whose end is known; rather one whose end is the cause of the others'.
  // Waits until the end of one of them is told.
  std::optional<int> AwaitOne(std::span<const int> ranks);
  // Whether a signal has ended a rank that launchers do not send because another rank has failed.
  // mydistrun does not tell of those that it sends.
  bool IsCause(const ProcessEnd& end) const;

 private:
  std::optional<ProcessEnd> Read(int rank) const;
  bool MayTell(std::span<const int> ranks) const;

  int descriptor_ = -1;
  std::optional<FileIdentity> file_;
  std::vector<int> started_;
  std::map<int, Process> processes_;   // By rank.
  std::optional<TimePoint> deadline_;  // Of all waits, from the first one on.
};

}  // namespace mydist
