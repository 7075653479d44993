// StallInspector: which tensors have been waiting too long. Pure; `now` is an argument.
// Owned by the Negotiator of one vertex. A wait is reported after `warning`, then at 2, 4, 8 …
// times that, and expires once after `shutdown`. Starting and stopping a wait cost O(1).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"

namespace mydist {

struct StallEvent {
  uint64_t wait = 0;
  std::string name;  // As given to Start.
  Duration waited = Duration::zero();
  bool expired = false;  // `shutdown` has passed. The wait is still to be stopped by the caller.
};

class StallInspector {
 public:
  // Zero (or less) switches the warning or the expiry off.
  StallInspector(Duration warning, Duration shutdown);

  // Begins a wait and returns its number, never 0. `since` may lie in the past.
  uint64_t Start(std::string name, TimePoint since, TimePoint now);
  // Ends it; unknown numbers are ignored.
  void Stop(uint64_t wait);
  bool IsWaiting(uint64_t wait) const { return waits_.contains(wait); }
  TimePoint Since(uint64_t wait) const;  // Of a wait that has not been stopped.

  // Events due at `now`, oldest wait first; each is returned once.
  std::vector<StallEvent> TakeDue(TimePoint now);
  // When TakeDue next has something; kNever when nothing waits.
  TimePoint NextDeadline();
  size_t wait_count() const { return waits_.size(); }
  std::vector<std::string> Names() const;  // Of all waits, in alphabetical order.
  void Clear();

 private:
  struct Wait {
    std::string name;
    TimePoint since;
    Duration next_warning;  // After `since`; Duration::max(): none.
    bool expired = false;
  };

  bool enabled() const { return first_due_ != Duration::max(); }
  TimePoint DueOf(const Wait& wait) const;
  void Collect(uint64_t number, TimePoint now, std::vector<StallEvent>& events);

  Duration warning_;
  Duration shutdown_;
  Duration first_due_;  // After the beginning of a wait; max(): never.
  uint64_t last_number_ = 0;
  std::unordered_map<uint64_t, Wait> waits_;
  std::deque<uint64_t> fresh_;  // Begun in order of time, nothing reported yet; may be stopped.
  std::vector<uint64_t> late_;  // Reported at least once, or begun in the past.
};

}  // namespace mydist
