// StragglerWatch: which ranks the others wait for, from how long each rank has waited in all. A
// rank that comes to the collectives last waits least. Pure: the caller tells the time. Owned by
// the Job of rank 0; used by the thread of its heartbeats.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace mydist {

struct StragglerNote {
  std::vector<int> ranks;  // The others wait for these.
  Duration waited{};       // The median wait of the others.
  Duration watched{};      // The time in which they waited.

  bool operator==(const StragglerNote&) const = default;
};

class StragglerWatch {
 public:
  // `window`, above zero: the time that a note is about.
  explicit StragglerWatch(Duration window) : window_(window) {}

  // Call it about ten times in a window. A second note about the same ranks comes after twice the
  // time.
  std::optional<StragglerNote> Look(std::span<const RankProgress> progress, TimePoint now);

 private:
  struct Sample {
    TimePoint as_of = kPast;
    double waited = 0;
  };
  // How much of the time each rank has waited since the window began.
  std::map<int, double> Shares(const std::map<int, Sample>& samples) const;

  const Duration window_;
  TimePoint begin_ = kPast;  // The window's begin; kPast: none has begun.
  std::map<int, Sample> at_begin_;
  std::vector<int> noted_;          // The ranks of the last note.
  TimePoint silent_until_ = kPast;  // No other note about them comes earlier.
  Duration pause_{};
};

// "the other ranks have waited 15.0 s of the last 60.0 s for rank 5 (…)": `who` names the ranks.
std::string StragglerText(const StragglerNote& note, const std::string& who);

}  // namespace mydist
