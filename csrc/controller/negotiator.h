// Negotiator: what one vertex of the tree knows and decides about the tensors of one process set.
// Pure: messages and `now` go in, messages and responses come out. Owned by the ProcessSetTable.
// Ranks outside the set have one as well: they relay reports and follow the cache.
// Invariants: a tensor goes up once the whole subtree is ready; state that all ranks share (the
// cache) changes only by stream items; the root applies each item as it decides it. The argument
// why this is right is docs/wire_protocol.md.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/frozen/step_history.h"
#include "controller/fusion_planner.h"
#include "controller/messages/report.h"
#include "controller/messages/response.h"
#include "controller/pending_tensors.h"
#include "controller/readiness.h"
#include "controller/response_cache.h"
#include "controller/tree.h"
#include "world/process_set.h"

namespace mydist {

struct NegotiatorOptions {
  int32_t size = 1;  // Ranks in the job.
  int64_t cache_capacity = 0;
  Duration stall_warning = Duration::zero();   // 0: no warnings.
  Duration stall_shutdown = Duration::zero();  // 0: never.
  std::vector<std::string> hosts;              // Of each rank, for messages; may be empty.
  std::vector<int64_t> pids;                   // The same.
  // What waits in any process set: looked at when a tensor stalls.
  std::function<std::vector<WaitingTensor>()> all_waiting;
};

// How far a vertex has come, and what follows for its engine from the items applied since it was
// last asked. Shared by the negotiators of all process sets.
struct StreamState {
  uint64_t position = 0;
  std::vector<Response> responses;
  StepHistory history;
};

struct NegotiatorStats {
  int64_t cache_hits = 0;  // Of this rank's own requests.
  int64_t cache_misses = 0;
  int64_t entries_received = 0;  // Ready slots and requests reported by children.

  void Add(const NegotiatorStats& other) {
    cache_hits += other.cache_hits;
    cache_misses += other.cache_misses;
    entries_received += other.entries_received;
  }
};

class Negotiator {
 public:
  // `vertex`: of the whole job. `stream` must outlive this object.
  Negotiator(ProcessSet set, const Vertex& vertex, NegotiatorOptions options, StreamState* stream);
  Negotiator(const Negotiator&) = delete;
  Negotiator& operator=(const Negotiator&) = delete;

  // This rank is ready for these tensors. All or none: kInvalidArgument, naming the tensor, when
  // one cannot travel, or has been announced and not answered; kTimeout when the others have given
  // up waiting for one. Once a rank has departed nothing is accepted any more and nothing said.
  Status Submit(const std::vector<Request>& requests, TimePoint now);

  // What child `peer`, which stood at `position` of the stream, reports. kInternal when it breaks
  // the protocol.
  Status TakeReport(int32_t peer, const SetReport& report, uint64_t position, TimePoint now);
  // No child will report from before this position any more.
  void ForgetBefore(uint64_t position) { ended_.Purge(position); }
  // A rank of the job has nothing to contribute until ResetJoined. It has no tensor in flight.
  void Join(int32_t rank);
  void ResetJoined();

  // Not the root: the next item of the stream, which concerns this set. kInternal when it breaks
  // the protocol.
  Status Apply(const StreamItem& item);
  // The batch ends here.
  void ApplyBoundary(TimePoint now);
  // A rank has left: nothing becomes ready any more.
  void Close();
  // The same because the set is removed: what is in flight fails.
  void Remove();
  // Negotiation rests: forgets everything announced and not decided, and what children say from
  // before this position. What this rank has in flight, in order of announcement.
  std::vector<Request> Freeze();
  // Root: decides what can be decided and appends it, applied, to `items`.
  Status Decide(TimePoint now, std::vector<StreamItem>& items);
  // Not the root: adds to `report` what the parent has to know, once.
  SetReport TakeReportToParent(TimePoint now);

  // Whether Decide or TakeReportToParent has something to do before the next deadline.
  bool HasNews() const;
  // When it next has something to do though nothing arrives; kNever: not at all.
  TimePoint NextDeadline();
  // A bounded number of them.
  std::vector<WaitingTensor> WaitingTensors() const;

  bool HasOwnInFlight() const { return own_.size() > 0; }
  // Whether this rank has announced it, and has no answer.
  bool HasOwnInFlight(const std::string& name) const { return own_.Contains(name); }
  // Of the vertex's ranks, whom a tensor waits for, as far as it is known here.
  std::vector<int32_t> MissingRanks(const std::string& name) const;

  const ProcessSet& set() const { return set_; }
  const NegotiatorStats& stats() const { return stats_; }

 private:
  void Forget();  // What has been announced and not decided, but for this rank's own.
  enum class SlotReference { kValid, kOutdated, kWrong };

  // Taking in.
  Status CheckSubmission(const std::vector<Request>& requests) const;
  Status TakeMissed(const std::vector<Request>& requests);
  void Announce(const Request& request, TimePoint now);
  struct Source {  // A child, and where in the stream it was when it reported.
    size_t lane;
    uint64_t position;
  };
  SlotReference Judge(uint32_t slot, uint64_t position) const;
  Status TakeSlots(Source source, const SetReport& report, TimePoint now);
  Status TakeRequests(Source source, const SetReport& report, TimePoint now);
  Status TakeNotes(Source source, const SetReport& report, TimePoint now);
  void CompleteSlot(uint32_t slot);
  void CompleteRequest(const std::string& name);
  bool AddSlot(uint32_t slot, size_t lane, TimePoint now);           // False: it was there.
  bool AddRequest(size_t lane, Readiness readiness, TimePoint now);  // False: it was there.

  // Applying.
  void Respond(Response response);  // About this set.
  Status ApplyReady(const std::shared_ptr<const Agreement>& agreement);
  Status ApplyReadySlot(uint32_t slot);
  Status ApplyAgreement(const std::shared_ptr<const Agreement>& agreement);
  Status ApplyInvalidate(uint32_t slot);
  void ApplyError(const StreamItem& item);
  void LoseSlot(uint32_t slot);  // Before the cache frees or reassigns it.

  // Deciding (root).
  Status Emit(StreamItem item, std::vector<StreamItem>& items);
  Status EmitReady(const ReadyTensor& tensor, std::vector<StreamItem>& items);
  Status EmitFailure(const std::vector<ReadyTensor>& members, std::vector<StreamItem>& items);
  Readiness DisagreementOf(const ReadyTensor& tensor) const;
  Status Release(ReadyTensor tensor, TimePoint now, std::vector<StreamItem>& items);
  std::string JoinConflict(const Request& request) const;
  Status DecideStalls(TimePoint now, std::vector<StreamItem>& items);
  // About a tensor that has waited too long; empty: nothing that is not always said.
  std::string HintFor(const WaitingTensor& tensor, const std::vector<WaitingTensor>& others,
                      TimePoint now, Duration waited);
  Status DecideGroupStalls(TimePoint now, std::vector<StreamItem>& items);

  const ProcessSet set_;
  const Vertex vertex_;      // Restricted to the set.
  const int32_t own_index_;  // Of this rank in the set; -1 when it is no member.
  const NegotiatorOptions options_;
  StreamState* const stream_;
  ResponseCache cache_;
  Participation participation_;
  OwnRequests own_;
  PendingTensors pending_;
  EndedNames ended_;
  std::vector<StreamItem> missed_;  // Time-outs of what this rank has yet to submit.
  bool closed_ = false;  // Some rank has left, or the set is gone: nothing becomes ready any more.

  uint64_t frozen_at_ = 0;  // Position of the last freeze.

  // Complete here; on their way to the parent.
  std::vector<uint32_t> ready_slots_;
  std::vector<Readiness> ready_requests_;
  std::set<uint32_t> invalid_slots_;  // At the root: to be decided.

  // Root only.
  std::deque<ReadyTensor> complete_;  // Not yet decided, in order of completion.
  GroupGate gate_;
  StallInspector group_stalls_;
  // By the name of a tensor that another one was the near miss of when that ran out of time.
  std::map<std::string, std::pair<TimePoint, std::string>> near_misses_;

  NegotiatorStats stats_;
};

}  // namespace mydist
