// ProcessSetTable: the negotiators of all process sets at one vertex of the tree. Pure.
// Owned by the Coordinator. Set 0 is always there; others come and go by items of the stream, so
// every rank, member or not, has the same sets at the same position and numbers them alike.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/frozen/frozen_schedule.h"
#include "controller/messages/report.h"
#include "controller/messages/response.h"
#include "controller/negotiator.h"
#include "controller/tree.h"

namespace mydist {

class ProcessSetTable {
 public:
  ProcessSetTable(Vertex vertex, NegotiatorOptions options);

  // See Negotiator. Also kInvalidArgument for a set there is none of.
  Status Submit(const std::vector<Request>& requests, TimePoint now);
  // The joins of a report of the child of this lane, which are of its subtree, and what it says
  // about tensors. kInternal when the child breaks the protocol.
  Status TakeReport(size_t lane, const Report& report, TimePoint now);
  void Join(int32_t rank);

  // Not the root: the next item of the stream. kInternal when it breaks the protocol.
  Status Apply(const StreamItem& item, TimePoint now);
  // Root: decides what can be decided and appends it, applied, to `items`.
  Status Decide(TimePoint now, std::vector<StreamItem>& items);
  // Not the root: adds to `report` what the parent has to know, once.
  void FillReport(Report& report, TimePoint now);

  bool HasNews() const;
  TimePoint NextDeadline() const;
  // Whether there is anything to decide or to report. While the schedule is frozen there is not.
  bool IsDue(TimePoint now) const { return HasNews() || NextDeadline() <= now; }
  bool HasOwnInFlight() const;
  // Whom this rank, or one below it, waits for with a tensor, as far as it is known here: ranks of
  // the subtree, and the parent when they are ready or the rank's own tensor is with them.
  std::vector<int32_t> AwaitedWith(ProcessSetId id, const std::string& name) const;
  // The stream has told that a rank leaves: nothing becomes ready any more.
  bool departed() const { return departed_; }
  // What the freeze that was applied last found; once.
  struct Frozen {
    std::vector<FrozenBucket> buckets;
    std::vector<Request> own;  // In flight on this rank.
  };
  Frozen TakeFrozen() { return std::exchange(frozen_, {}); }
  // The length of the step that came `repeats` times, if the stream ends in one.
  StepHistory& history() { return stream_.history; }
  // Root: the item that freezes the last `length` tensors, which have come `repeats` times.
  StreamItem FreezeItem(size_t length, size_t repeats) const;

  // What follows for the engine from the items applied since the last call, in order.
  std::vector<Response> TakeResponses() { return std::exchange(stream_.responses, {}); }

  uint64_t position() const { return stream_.position; }  // Items applied.
  NegotiatorStats stats() const;

 private:
  Negotiator* Find(ProcessSetId id) const;
  void Add(std::vector<int> ranks);
  Status TakeSetReport(int32_t peer, ProcessSetId id, const Report& report, TimePoint now);
  Status CheckItem(const StreamItem& item) const;
  Status CheckAgreement(const Agreement& agreement, const ProcessSet& set) const;
  Status ApplyToJob(const StreamItem& item, TimePoint now);
  void ApplyDeparture(const StreamItem& item);
  Status ApplyFreeze(const FrozenStep& step);
  // Adds or removes the set the item agrees on.
  void FollowChange(const StreamItem& item);
  std::vector<WaitingTensor> AllWaiting() const;

  const Vertex vertex_;  // Of the whole job.
  NegotiatorOptions options_;
  StreamState stream_;
  Frozen frozen_;
  std::vector<uint64_t> lane_positions_;  // Of the latest report of each lane.
  std::map<ProcessSetId, std::unique_ptr<Negotiator>> negotiators_;
  ProcessSetId next_id_ = kGlobalProcessSet;
  NegotiatorStats removed_stats_;  // Of sets that are gone.
  bool departed_ = false;
};

}  // namespace mydist
