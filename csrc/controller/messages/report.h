// Report: what a vertex tells its parent; at most one per cycle. Pure data.
// Invariant: everything in it is meant for the stream as it was at `stream_position`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "controller/messages/request.h"
#include "controller/readiness.h"

namespace mydist {

// A tensor that part of the subtree has been waiting for too long.
struct StallNote {
  Request request;               // As one waiting rank requested it.
  std::vector<int32_t> missing;  // Ranks of the subtree that are not ready, ascending.
  Duration waited = Duration::zero();
};

struct Departure {
  int32_t rank = -1;
  std::string reason;
};

// A rank votes BREAK, or wants the others to.
struct ThawNote {
  int32_t rank = -1;
  bool is_done = false;      // It has thawed; else it only wishes for it.
  bool was_starved = false;  // Done, after it had waited in vain for a tensor of its own.

  bool operator==(const ThawNote&) const = default;
};

struct TimelineControl {
  bool start = false;  // Else stop.
  bool mark_cycles = false;
};

// What it tells about the tensors of one process set.
struct SetReport {
  std::vector<uint32_t> ready_slots;    // Cached tensors the subtree is ready for, ascending.
  std::vector<uint32_t> invalid_slots;  // Cached agreements that no longer hold.
  std::vector<Readiness> ready_requests;
  std::vector<StallNote> stalls;

  bool empty() const {
    return ready_slots.empty() && invalid_slots.empty() && ready_requests.empty() && stalls.empty();
  }
};

struct Report {
  uint64_t stream_position = 0;  // Items of the stream the sender has applied.
  std::map<ProcessSetId, SetReport> sets;
  // Ranks that have joined. Handled before the sets, which are reported with them left out.
  std::vector<int32_t> joins;
  std::vector<Departure> departures;
  std::vector<TimelineControl> timeline;
  std::vector<ThawNote> thaws;

  bool empty() const {
    return sets.empty() && joins.empty() && departures.empty() && timeline.empty() && thaws.empty();
  }
};

}  // namespace mydist
