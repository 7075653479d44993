// Coordinator: this rank's vertex in the tree of coordinators; the "negotiate" step and the only
// I/O of csrc/controller. Owned by the engine; all methods but Await and Wake are called by the
// thread that drives the engine. Everything it decides is decided by pure classes.
// Invariant: the batches Negotiate returns are the same, in the same order, on every rank; only
// kError is left out on ranks that do not have the tensor in flight, and kReady on those that take
// no part.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/status.h"
#include "controller/control_port.h"
#include "controller/frozen/frozen_mode.h"
#include "controller/inquiry.h"
#include "controller/membership.h"
#include "controller/messages/request.h"
#include "controller/messages/response.h"
#include "controller/process_set_table.h"
#include "controller/tree.h"
#include "transport/control_plane.h"
#include "transport/vote_board.h"

namespace mydist {

struct CoordinatorOptions {
  int rank = 0;
  int size = 1;
  int radix = 32;                              // Children per vertex of the tree, at least 1.
  int64_t freeze_after = 0;                    // See FreezePolicy; the same on all ranks.
  int64_t cache_capacity = 1024;               // Tensors; 0 switches the response cache off.
  Duration stall_warning = Duration::zero();   // 0: no warnings.
  Duration stall_shutdown = Duration::zero();  // 0: never.
  VoteLimits vote_limits{};
  // Of each rank, for tree, votes and messages; empty: all on one.
  std::vector<std::string> hosts;
  std::vector<int64_t> pids;  // Of each rank, for messages; may be empty.
};

// See Coordinator::InquireWhoStays.
inline constexpr size_t kMostStaying = 64;

// How far this rank's own join has come.
enum class Joining { kNo, kWanted, kTold };

class MYDIST_EXPORT Coordinator {
 public:
  // `plane` must outlive the coordinator; null exactly when size is 1.
  // `board`: of the ranks of this host; null on all ranks of the job when those of some host have
  // none: then the job never freezes.
  Coordinator(CoordinatorOptions options, ControlPlane* plane, VoteBoard* board = nullptr);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // These tensors became ready on this rank. All members of a group in one call. Does not send or
  // block; Negotiate does. kInvalidArgument, with nothing announced, for a request that no message
  // can carry (name, group or shape too long, a negative dimension), a name that is still in
  // flight, a process set that is unknown or has not this rank, or anything after Join.
  // kTimeout, likewise, when the others have given up waiting for one of them: this rank missed it.
  Status Announce(std::vector<Request> requests, TimePoint now);

  // This rank has nothing to contribute until every rank has joined (kAllJoined): what the others
  // announce meanwhile becomes ready without it. Takes effect once what it has announced has been
  // answered. kInvalidArgument when it is called twice.
  Status Join();

  // This rank leaves: every rank gets kDeparted with `reason` and, once all have left, kFinished.
  // Keep cycling until then, and executing what becomes ready before kDeparted: the other ranks
  // execute it too. A second call changes nothing.
  Status Depart(std::string reason);

  // Asks the root to start or stop the timeline on every rank.
  void RequestTimeline(TimelineControl control) {
    membership_.Control(control);
    frozen_.Break();
  }

  // Takes in every message already there; never blocks. Errors of the control plane: kPeerLost and
  // others, to be treated as fatal. The loss of a peer during departure is none unless kFinished
  // stays away for 5 s.
  Status Exchange(TimePoint now) { return port_.Exchange(now); }

  // The same of the loss of a rank that is known by other means. What that rank has said itself
  // counts more.
  Status JudgeLoss(int rank, Status loss);
  // `on_progress` gets the progress in the farewells of other ranks.
  void SetOnProgress(std::function<void(std::span<const RankProgress>)> on_progress) {
    on_progress_ = std::move(on_progress);
  }
  // Passes the progress in newly received farewells to `on_progress`.
  void HearProgress(TimePoint now);
  // The signal that ended the rank, as another rank tells it; 0: none has told one yet.
  int ToldSignalOf(int rank, TimePoint now);

  // Takes the messages and announcements in, sends what follows from them, and returns one batch
  // of responses to handle (Ready ones: plan and execute), in stream order. Empty: nothing now.
  // The caller hands the members of exactly one batch to the fusion planner. Never blocks.
  // kInternal or kVersionMismatch, naming the rank, for a malformed message; kPeerLost, also when
  // this rank waits for something of one that has left with an error.
  Result<std::vector<Response>> Negotiate(TimePoint now);

  // When Exchange and Negotiate are due even without a message: in the past while there is
  // something to do, at the next stall, or kNever.
  TimePoint NextDeadline() const;

  // A caller of this rank waits for a tensor it has announced, or no caller does any more: a rank
  // whose program goes another way than the frozen schedule then says so soon.
  void SetWaiting(bool waiting, TimePoint now) { frozen_.SetWaiting(waiting, now); }

  // In the middle of a collective, where Negotiate is not called: Exchange, and answers to other
  // ranks that ask whom this rank waits for. `awaited`: ranks of the job.
  Status AttendWait(TimePoint now, std::span<const int> awaited);
  // Asks whom this rank waits for in the end, with a tensor: `awaited`, or, when that is empty, who
  // keeps it from being decided. Goes on in Negotiate and AttendWait until EndInquiry.
  Status Inquire(ProcessSetId process_set, const std::string& tensor,
                 std::span<const int> awaited = {});
  // The same for a rank that has departed and waits until all have. It hears of the first
  // kMostStaying ranks that have not.
  Status InquireWhoStays() { return inquirer_.Begin(kLeaving, "", Staying()); }
  // The same for a rank in a call that names no tensor, as join(): which ranks have not joined.
  Status InquireWhoJoins() { return inquirer_.Begin(kJoining, "", NotJoined()); }
  // Of the ranks that have answered.
  const std::map<int32_t, Progress>& progress() const { return inquirer_.progress(); }
  void TellProgressBy(std::function<Progress()> tell) { inquirer_.TellProgressBy(std::move(tell)); }
  const Inquiry& inquiry() const { return inquirer_.inquiry(); }
  void EndInquiry() { inquirer_.End(); }
  // Whether this rank must end its wait for a decision itself: a vote is undecided, or the inquiry
  // has found that a vertex between it and the root gives no answer.
  bool MustEndWait() const;

  // Waiting as in ControlPlane; also with a single rank.
  void Await(TimePoint deadline) { port_.Await(deadline); }
  void Wake() { port_.Wake(); }
  void Attend(bool attended) { port_.Attend(attended); }

  // The last call but for the timeline's: no rank is to wait for this rank's votes. `why` is OK
  // when it leaves in order; else it is what all others are told, with `progress`.
  void Leave(const Status& why, std::vector<RankProgress> progress = {});

  // Sends an opaque block to rank 0, where TakeTimeline returns it. Does not wait.
  Status SendTimeline(Bytes block);
  // On rank 0: the blocks that arrived since the last call, in order per rank. Else empty.
  std::vector<IncomingMessage> TakeTimeline() { return std::exchange(timeline_, {}); }

  // Told when another rank asks whom this rank waits for, and it waits for none.
  void SetOnAwaited(std::function<void()> on_awaited) { on_awaited_ = std::move(on_awaited); }

  const CoordinatorStats& stats();
  // Of them, at the price of reading it.
  int64_t messages_received() const { return port_.stats().control_messages_received; }

 private:
  // What a farewell in the inbox says; OK: it is none.
  Status LossToldBy(const IncomingMessage& message) const;
  // The error by which a rank has left because of one of these; OK: there is none.
  Status BlameFor(std::span<const int> awaited) const;
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
  std::function<void()> on_awaited_;
  std::function<void(std::span<const RankProgress>)> on_progress_;
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
  bool has_other_departed_ = false;  // The stream tells of another rank.
  uint32_t reports_sent_ = 0;
  std::vector<uint32_t> reports_taken_;  // By lane.

  StreamSegment down_;                              // For the children, not yet sent.
  std::vector<StreamItem> partial_;                 // Received items behind the last boundary.
  std::deque<std::vector<Response>> batches_;       // To be returned, one at a time.
  std::vector<std::vector<Response>> behind_vote_;  // To be returned after an undecided bucket.
  std::vector<IncomingMessage> timeline_;
};

}  // namespace mydist
