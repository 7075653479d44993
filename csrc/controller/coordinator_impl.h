// Coordinator::Impl: what the coordinator is made of. The cycle is in coordinator.cc, what else the
// engine calls in coordinator_calls.cc; only these two include this header.
#pragma once

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "controller/control_port.h"
#include "controller/coordinator.h"
#include "controller/frozen/frozen_mode.h"
#include "controller/inquirer.h"
#include "controller/membership.h"
#include "controller/process_set_table.h"
#include "controller/tree.h"

namespace mydist {

// How far this rank's own join has come.
enum class Joining { kNo, kWanted, kTold };

class Coordinator::Impl {
 public:
  Impl(CoordinatorOptions options, ControlPlane* plane, VoteBoard* board);

  Status Announce(std::vector<Request> requests, TimePoint now);
  Status Join();
  Status Depart(std::string reason);
  void Control(TimelineControl control) {
    membership_.Control(control);
    frozen_.Break();
  }
  Result<std::vector<Response>> Negotiate(TimePoint now);
  void SetWaiting(bool waiting, TimePoint now) { frozen_.SetWaiting(waiting, now); }
  void Leave(const Status& why);
  TimePoint NextDeadline() const;
  ControlPort& port() { return port_; }
  Status SendTimeline(Bytes block);
  std::vector<IncomingMessage> TakeTimeline() { return std::exchange(timeline_, {}); }
  const CoordinatorStats& stats();

  std::vector<int32_t> AwaitedWith(ProcessSetId process_set, const std::string& tensor) const;
  // The same, and all through whom a decision comes: one of them may not know that it is waited
  // for.
  std::vector<int32_t> AllAwaitedWith(ProcessSetId process_set, const std::string& tensor) const;
  // What a rank waits for before it can leave: the ranks that have not departed, as far as it
  // knows.
  std::vector<int32_t> Staying() const;
  std::vector<int32_t> NotJoined() const;
  // The first kMostStaying ranks of the job for which it is true.
  std::vector<int32_t> FirstRanks(const std::function<bool(int32_t)>& is_awaited) const;
  bool MustEndWait() const;
  Status AttendWait(TimePoint now, std::span<const int> awaited);
  Inquirer& inquirer() { return inquirer_; }

 private:
  bool HasOwnInFlight() const { return sets_.HasOwnInFlight() || frozen_.HasHeld(); }
  bool HasWork() const;
  const Status& Loss() const;
  Status Send(int32_t peer, Bytes message);
  Status TakeIn(TimePoint now);
  Status TakeSegment(const IncomingMessage& message, TimePoint now);
  Status TakeReport(const IncomingMessage& message, TimePoint now);
  Status TakeVote(const IncomingMessage& message);
  Status TakeFarewell(const IncomingMessage& message);
  Status TakeQuestion(const IncomingMessage& message);
  Status TakeTimelineBlock(IncomingMessage message);
  Status ApplyWholeBatches(TimePoint now);
  void FinishBatch();
  Status FollowJoin();
  Status FollowStream(const StreamItem& item, TimePoint now);
  Status FollowFrozen(TimePoint now);
  Status SendVote(const FrozenMode::HostVote& vote);
  void AnnounceThawed(const std::vector<Request>& requests, TimePoint now);
  void Return(std::vector<Response> batch);
  bool MayRest() const;
  Status Decide(TimePoint now);
  Status DecideFreeze(TimePoint now);
  Status Emit(StreamItem item, TimePoint now);
  Status ReportUp(TimePoint now);
  Status SendDown();

  const CoordinatorOptions options_;
  const Vertex vertex_;
  std::vector<int32_t> ancestors_;  // The parent first, the root last.
  ControlPort port_;
  Membership membership_;
  ProcessSetTable sets_;
  Farewells farewells_;
  FrozenMode frozen_;
  Inquirer inquirer_;
  Joining joining_ = Joining::kNo;
  bool is_leaving_ = false;

  StreamSegment down_;                              // For the children, not yet sent.
  std::vector<StreamItem> partial_;                 // Received items behind the last boundary.
  std::deque<std::vector<Response>> batches_;       // To be returned, one at a time.
  std::vector<std::vector<Response>> behind_vote_;  // To be returned after an undecided bucket.
  std::vector<IncomingMessage> timeline_;
};

}  // namespace mydist
