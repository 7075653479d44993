// Negotiator: what one vertex of the tree knows and decides about the tensors of one process set.
// Pure: messages and `now` go in, messages and responses come out. Owned by the Coordinator.
// Invariants: a tensor goes up once the whole subtree is ready; state that all ranks share (the
// cache) changes only by stream items; the root applies each item as it decides it. The argument
// why this is right is docs/wire_protocol.md.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/ended_names.h"
#include "controller/group_gate.h"
#include "controller/own_requests.h"
#include "controller/pending_tensors.h"
#include "controller/report.h"
#include "controller/response.h"
#include "controller/response_cache.h"
#include "controller/stream.h"
#include "controller/tree.h"

namespace mydist {

struct NegotiatorOptions {
  ProcessSetId process_set = kGlobalProcessSet;
  int64_t cache_capacity = 0;
  Duration stall_warning = Duration::zero();   // 0: no warnings.
  Duration stall_shutdown = Duration::zero();  // 0: never.
  std::vector<std::string> hosts;              // Of each rank, for messages; may be empty.
};

struct NegotiatorStats {
  uint64_t cache_hits = 0;  // Of this rank's own requests.
  uint64_t cache_misses = 0;
  uint64_t entries_received = 0;  // Ready slots and requests reported by children.
};

class Negotiator {
 public:
  Negotiator(Vertex vertex, NegotiatorOptions options);
  Negotiator(const Negotiator&) = delete;
  Negotiator& operator=(const Negotiator&) = delete;

  // This rank is ready for these tensors. All or none: kInvalidArgument, naming the tensor, when
  // one cannot travel, has been announced and not answered, or is of another process set. Once a
  // rank has departed nothing is accepted any more and nothing said.
  Status Submit(const std::vector<Request>& requests, TimePoint now);

  // What child `peer` reports about tensors. kInternal when it breaks the protocol.
  Status TakeReport(int32_t peer, const Report& report, TimePoint now);

  // Not the root: the next item of the stream. kInternal when it breaks the protocol.
  Status Apply(const StreamItem& item, TimePoint now);
  // Root: decides what can be decided and appends it, applied, to `items`.
  Status Decide(TimePoint now, std::vector<StreamItem>& items);
  // Not the root: adds to `report` what the parent has to know, once.
  void FillReport(Report& report, TimePoint now);

  // Whether Decide or FillReport has something to do before the next deadline.
  bool HasNews() const;
  // When it next has something to do though nothing arrives; kNever: not at all.
  TimePoint NextDeadline();
  // The responses of the items applied since the last call, in order.
  std::vector<Response> TakeResponses() { return std::exchange(responses_, {}); }

  uint64_t position() const { return position_; }  // Items applied.
  const NegotiatorStats& stats() const { return stats_; }
  const ResponseCache& cache() const { return cache_; }

 private:
  enum class SlotReference { kValid, kOutdated, kWrong };

  // Taking in.
  Status CheckSubmission(const std::vector<Request>& requests) const;
  void Announce(const Request& request, TimePoint now);
  SlotReference Judge(uint32_t slot, uint64_t position) const;
  Status TakeSlots(size_t lane, const Report& report, TimePoint now);
  Status TakeRequests(size_t lane, const Report& report, TimePoint now);
  Status TakeNotes(size_t lane, const Report& report, TimePoint now);
  bool AddSlot(uint32_t slot, size_t lane, TimePoint now);           // False: it was there.
  bool AddRequest(size_t lane, Readiness readiness, TimePoint now);  // False: it was there.

  // Applying.
  Response& Respond(ResponseKind kind);
  void ApplyBoundary(TimePoint now);
  Status ApplyReady(const std::shared_ptr<const Agreement>& agreement);
  Status ApplyReadySlot(uint32_t slot);
  Status ApplyAgreement(const std::shared_ptr<const Agreement>& agreement);
  Status ApplyInvalidate(uint32_t slot);
  void ApplyError(const StreamItem& item);
  void ApplyDeparture(const StreamItem& item);
  void LoseSlot(uint32_t slot);  // Before the cache frees or reassigns it.

  // Deciding (root).
  Status Emit(StreamItem item, TimePoint now, std::vector<StreamItem>& items);
  Status EmitReady(const ReadyTensor& tensor, TimePoint now, std::vector<StreamItem>& items);
  Status EmitFailure(const std::vector<ReadyTensor>& members, TimePoint now,
                     std::vector<StreamItem>& items);
  Status Release(ReadyTensor tensor, TimePoint now, std::vector<StreamItem>& items);
  Status DecideStalls(TimePoint now, std::vector<StreamItem>& items);
  Status DecideGroupStalls(TimePoint now, std::vector<StreamItem>& items);
  std::vector<WaitingTensor> WaitingTensors() const;

  const Vertex vertex_;
  const NegotiatorOptions options_;
  ResponseCache cache_;
  OwnRequests own_;
  PendingTensors pending_;
  EndedNames ended_;
  std::vector<uint64_t> lane_positions_;  // Of the latest report of each lane.
  uint64_t position_ = 0;
  bool departed_ = false;  // Some rank has left: nothing becomes ready any more.

  // Complete here; on their way to the parent.
  std::vector<uint32_t> ready_slots_;
  std::vector<Readiness> ready_requests_;
  std::set<uint32_t> invalid_slots_;  // At the root: to be decided.

  // Root only.
  std::deque<ReadyTensor> complete_;  // Not yet decided, in order of completion.
  GroupGate gate_;
  StallInspector group_stalls_;

  std::vector<Response> responses_;
  NegotiatorStats stats_;
};

}  // namespace mydist
