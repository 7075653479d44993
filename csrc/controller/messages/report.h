// Report: what a vertex tells its parent; at most one per cycle. Pure data.
// Invariant: everything in it is meant for the stream as it was at `stream_position`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/messages/request.h"
#include "controller/messages/response.h"
#include "controller/readiness.h"
#include "controller/tree.h"

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

// The part of a report about the tensors of one process set.
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
  // Counts the messages of this sender, which travel in order: one that comes twice would announce
  // a tensor twice.
  uint32_t number = 0;
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

// Report check: whether what a child reports can be true. Pure.
// Everything a peer sends is checked here or while decoding, so that the rest may rely on it.

// kInternal, saying what is wrong.
// What ranks have done, only a vertex above them may tell.
Status CheckSpeaker(const Report& report, const Lane& lane);
Status CheckReadiness(const Readiness& readiness, const Lane& lane, ProcessSetId process_set);
Status CheckNote(const StallNote& note, const Lane& lane, ProcessSetId process_set);

// Whether the ranks a request names, its root among them, can be right. kInvalidArgument.
Status CheckRanks(const Request& request, const ProcessSet& set);

// Whether the request of the set's member number `index` is covered by what was agreed on.
bool MatchesAgreement(const Request& request, const Agreement& agreement, int32_t index);

}  // namespace mydist
