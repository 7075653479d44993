#include "controller/coordinator.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "controller/control_port.h"
#include "controller/frozen/frozen_mode.h"
#include "controller/membership.h"
#include "controller/messages/report.h"
#include "controller/messages/wire.h"
#include "controller/process_set_table.h"
#include "controller/tree.h"
#include "world/departure.h"
#include "world/process_set.h"

namespace mydist {
namespace {

NegotiatorOptions OptionsOf(const CoordinatorOptions& options) {
  return {.size = options.size,
          .cache_capacity = options.cache_capacity,
          .stall_warning = options.stall_warning,
          .stall_shutdown = options.stall_shutdown,
          .hosts = options.hosts};
}

}  // namespace

// How far this rank's own join has come.
enum class Joining { kNo, kWanted, kTold };

class Coordinator::Impl {
 public:
  Impl(CoordinatorOptions options, ControlPlane* plane, VoteBoard* board)
      : options_(std::move(options)),
        vertex_(MakeVertex(options_.rank, options_.size, options_.radix, options_.hosts)),
        port_(plane),
        membership_(options_.size),
        sets_(vertex_, OptionsOf(options_)),
        farewells_(vertex_.parent, options_.size, options_.hosts),
        frozen_(options_, board, &farewells_) {
    // Where nobody can vote nothing freezes: the history would fill up for nothing.
    if (options_.freeze_after > 0 && board != nullptr) {
      sets_.history().Enable(static_cast<size_t>(options_.freeze_after));
    }
    MYDIST_CHECK((plane == nullptr) == (options_.size == 1));
  }

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
  ControlPort port_;
  Membership membership_;
  ProcessSetTable sets_;
  Farewells farewells_;
  FrozenMode frozen_;
  Joining joining_ = Joining::kNo;
  bool is_leaving_ = false;

  StreamSegment down_;                              // For the children, not yet sent.
  std::vector<StreamItem> partial_;                 // Received items behind the last boundary.
  std::deque<std::vector<Response>> batches_;       // To be returned, one at a time.
  std::vector<std::vector<Response>> behind_vote_;  // To be returned after an undecided bucket.
  std::vector<IncomingMessage> timeline_;
};

Status Coordinator::Impl::Announce(std::vector<Request> requests, TimePoint now) {
  if (joining_ != Joining::kNo && !requests.empty()) {
    return Status::InvalidArgument("tensor '" + requests.front().name +
                                   "' was submitted after join(). This rank takes part in "
                                   "everything until all ranks have joined; wait for that.");
  }
  if (frozen_.active()) return frozen_.Submit(std::move(requests), now);
  return sets_.Submit(requests, now);
}

Status Coordinator::Impl::Join() {
  if (joining_ != Joining::kNo) {
    return Status::InvalidArgument("join() has been called already and has not returned yet");
  }
  joining_ = Joining::kWanted;
  frozen_.Break();
  return Status::Ok();
}

// Told only when nothing of ours is in flight: from then on everybody may do without us.
Status Coordinator::Impl::FollowJoin() {
  if (joining_ != Joining::kWanted || HasOwnInFlight()) return Status::Ok();
  joining_ = Joining::kTold;
  sets_.Join(options_.rank);
  return membership_.Join(options_.rank);
}

Status Coordinator::Impl::Depart(std::string reason) {
  port_.ExpectLosses();
  is_leaving_ = true;
  frozen_.Break();
  return membership_.Depart({options_.rank, std::move(reason)});
}

bool Coordinator::Impl::HasWork() const {
  return !batches_.empty() || port_.HasMessages() || membership_.HasNews() || sets_.HasNews() ||
         frozen_.HasNews() || (joining_ == Joining::kWanted && !HasOwnInFlight()) || !Loss().ok();
}

// What ends this rank: it waits for something of one that has left with an error. A vote once cast
// is only given up with whoever was to tell its outcome, and where nothing becomes ready any more
// a rank waits for nothing, until it leaves and waits for the others to do so.
const Status& Coordinator::Impl::Loss() const {
  static const Status kNone;
  if (frozen_.HasUndecidedVote()) return frozen_.LossOfOutcome();
  const bool waits = !sets_.departed() || is_leaving_;
  return waits && !frozen_.has_left() ? farewells_.loss() : kNone;
}

TimePoint Coordinator::Impl::NextDeadline() const {
  if (HasWork()) return kPast;
  return std::min({port_.NextDeadline(), sets_.NextDeadline(), frozen_.NextDeadline()});
}

Result<std::vector<Response>> Coordinator::Impl::Negotiate(TimePoint now) {
  MYDIST_RETURN_IF_ERROR(TakeIn(now));
  MYDIST_RETURN_IF_ERROR(FollowFrozen(now));
  MYDIST_RETURN_IF_ERROR(FollowJoin());
  MYDIST_RETURN_IF_ERROR(vertex_.is_root() ? Decide(now) : ReportUp(now));
  MYDIST_RETURN_IF_ERROR(SendDown());
  if (batches_.empty()) {
    MYDIST_RETURN_IF_ERROR(Loss());
    return std::vector<Response>();
  }
  std::vector<Response> batch = std::move(batches_.front());
  batches_.pop_front();
  return batch;
}

// Segments first: a child may already stand where they lead.
Status Coordinator::Impl::TakeIn(TimePoint now) {
  std::vector<IncomingMessage> messages = port_.TakeMessages();
  std::stable_partition(messages.begin(), messages.end(), [&](const IncomingMessage& message) {
    return message.source == vertex_.parent;
  });
  for (IncomingMessage& message : messages) {
    const int source = message.source;
    const auto kind = PeekKind(message.payload);
    Status status = kind.status();
    if (kind.ok() && *kind == MessageKind::kSegment) status = TakeSegment(message, now);
    if (kind.ok() && *kind == MessageKind::kReport) status = TakeReport(message, now);
    if (kind.ok() && *kind == MessageKind::kVote) status = TakeVote(message);
    if (kind.ok() && *kind == MessageKind::kFarewell) status = TakeFarewell(message);
    if (kind.ok() && *kind == MessageKind::kTimeline) {
      status = TakeTimelineBlock(std::move(message));
    }
    if (status.ok()) continue;
    const int32_t rank = source;
    return status.WithContext("control message from rank " + std::to_string(rank) +
                              HostListText({&rank, 1}, options_.hosts));
  }
  return Status::Ok();
}

Status Coordinator::Impl::TakeSegment(const IncomingMessage& message, TimePoint now) {
  if (message.source != vertex_.parent) {
    return Status::Internal("a segment of the stream, which only the parent, rank " +
                            std::to_string(vertex_.parent) + ", may send");
  }
  MYDIST_ASSIGN_OR_RETURN(StreamSegment segment, DecodeSegment(message.payload));
  const uint64_t expected = sets_.position() + partial_.size();
  if (segment.start != expected) {
    return Status::Internal("a segment starts at stream position " + std::to_string(segment.start) +
                            ", expected " + std::to_string(expected));
  }
  partial_.insert(partial_.end(), std::make_move_iterator(segment.items.begin()),
                  std::make_move_iterator(segment.items.end()));
  return ApplyWholeBatches(now);
}

Status Coordinator::Impl::ApplyWholeBatches(TimePoint now) {
  const auto last = std::find_if(partial_.rbegin(), partial_.rend(), [](const StreamItem& item) {
    return item.kind == StreamKind::kBoundary;
  });
  const auto end = last.base();
  const uint64_t start = sets_.position();
  for (auto item = partial_.begin(); item != end; ++item) {
    if (item->kind == StreamKind::kAllJoined && joining_ != Joining::kTold) {
      return Status::Internal("all ranks are said to have joined, which this one has not");
    }
    MYDIST_RETURN_IF_ERROR(sets_.Apply(*item, now));
    MYDIST_RETURN_IF_ERROR(FollowStream(*item, now));
  }
  if (down_.items.empty()) down_.start = start;
  down_.items.insert(down_.items.end(), std::make_move_iterator(partial_.begin()),
                     std::make_move_iterator(end));
  partial_.erase(partial_.begin(), end);
  return Status::Ok();
}

// What follows at once does so on every rank, also where the batch waits behind a vote: peers may
// close their connections, and report joins anew.
void Coordinator::Impl::FinishBatch() {
  std::vector<Response> batch = sets_.TakeResponses();
  for (const Response& response : batch) {
    if (response.kind == ResponseKind::kDeparted) port_.ExpectLosses();
    if (response.kind != ResponseKind::kAllJoined) continue;
    membership_.ResetJoined();
    joining_ = Joining::kNo;
  }
  if (!batch.empty()) Return(std::move(batch));
}

void Coordinator::Impl::Return(std::vector<Response> batch) {
  if (frozen_.HasUndecidedVote()) return behind_vote_.push_back(std::move(batch));
  // Not before: the peer that is to vote yet may be lost.
  for (const Response& response : batch) {
    if (response.kind == ResponseKind::kFinished) port_.Finish();
  }
  batches_.push_back(std::move(batch));
}

// What an item just applied means beyond the process sets.
Status Coordinator::Impl::FollowStream(const StreamItem& item, TimePoint now) {
  if (item.kind == StreamKind::kBoundary) FinishBatch();
  if (item.kind == StreamKind::kThaw) frozen_.Break();
  if (item.kind != StreamKind::kFreeze) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(frozen_.Freeze(sets_.TakeFrozen(), now));
  if (!MayRest()) frozen_.Break();
  return Status::Ok();
}

// Whether this rank has nothing on its mind but tensors.
bool Coordinator::Impl::MayRest() const {
  return joining_ == Joining::kNo && !is_leaving_ && !membership_.HasNews();
}

Status Coordinator::Impl::FollowFrozen(TimePoint now) {
  if (!frozen_.active()) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(const FrozenMode::Outcome outcome, frozen_.Follow(now));
  for (const Bucket& bucket : outcome.executed) {
    std::vector<Response>& batch = batches_.emplace_back();
    for (const auto& agreement : bucket.tensors) {
      Response& response = batch.emplace_back();
      response.agreement = agreement;
      response.process_set = bucket.process_set;
    }
  }
  for (const FrozenMode::HostVote& vote : outcome.told) MYDIST_RETURN_IF_ERROR(SendVote(vote));
  if (frozen_.HasUndecidedVote()) return Status::Ok();
  AnnounceThawed(outcome.thawed, now);
  for (std::vector<Response>& batch : std::exchange(behind_vote_, {})) Return(std::move(batch));
  return Status::Ok();
}

// To one that has left it goes nowhere; one that has departed may do so at any time.
Status Coordinator::Impl::Send(int32_t peer, Bytes message) {
  if (farewells_.HasLeft(peer)) return Status::Ok();
  if (membership_.HasDeparted(peer)) return port_.SendIfThere(peer, std::move(message));
  return port_.Send(peer, std::move(message));
}

// One that has gone must not keep it from the others, and its farewell or its loss is under way.
Status Coordinator::Impl::SendVote(const FrozenMode::HostVote& vote) {
  for (const int32_t leader : vote.leaders) {
    MYDIST_RETURN_IF_ERROR(port_.SendIfThere(leader, EncodeVote(vote.word)));
    ++port_.stats().votes_sent;
  }
  return Status::Ok();
}

Status Coordinator::Impl::TakeVote(const IncomingMessage& message) {
  MYDIST_ASSIGN_OR_RETURN(const VoteWord word, DecodeVote(message.payload));
  ++port_.stats().votes_received;
  return frozen_.TakeVote(message.source, word);
}

Status Coordinator::Impl::TakeFarewell(const IncomingMessage& message) {
  MYDIST_ASSIGN_OR_RETURN(const Farewell farewell, DecodeFarewell(message.payload));
  if (frozen_.has_left()) return Status::Ok();
  farewells_.Take(message.source, farewell);
  if (!farewell.is_told || !vertex_.is_root()) return Status::Ok();
  return membership_.Depart({message.source, farewell.why});
}

// Whom the stream does not reach any more, or never told of a loss, has to hear of it from this
// rank. Who cannot be told any more notices that it is gone.
void Coordinator::Impl::Leave(const Status& why) {
  std::vector<Status> sent;
  if (const auto vote = frozen_.Leave()) sent.push_back(SendVote(*vote));
  const bool is_told = why.code() != StatusCode::kPeerLost || is_leaving_ || sets_.departed() ||
                       farewells_.is_loss_told();
  const Bytes farewell = EncodeFarewell({is_told, FarewellWords(why)});
  for (int32_t peer = 0; !why.ok() && peer < options_.size; ++peer) {
    if (peer != options_.rank) sent.push_back(Send(peer, farewell));
  }
  for (const Status& status : sent) {
    if (!status.ok()) MYDIST_LOG(kDebug) << "leaving without a word: " << status.message();
  }
}

// One at a time: what cannot be announced any more fails alone.
void Coordinator::Impl::AnnounceThawed(const std::vector<Request>& requests, TimePoint now) {
  for (const Request& request : requests) {
    Status status = sets_.Submit({request}, now);
    if (status.ok()) continue;
    Response response;
    response.kind = ResponseKind::kError;
    response.name = request.name;
    response.process_set = request.process_set;
    response.status = std::move(status);
    batches_.push_back({std::move(response)});
  }
}

Status Coordinator::Impl::TakeReport(const IncomingMessage& message, TimePoint now) {
  MYDIST_ASSIGN_OR_RETURN(const Report report, DecodeReport(message.payload));
  const auto lane = vertex_.LaneOf(message.source);
  if (!lane) return Status::Internal("a report came from a rank that is no child of this one");
  MYDIST_RETURN_IF_ERROR(CheckSpeaker(report, vertex_.lanes[*lane]));
  MYDIST_RETURN_IF_ERROR(membership_.TakeReport(report));
  MYDIST_RETURN_IF_ERROR(frozen_.TakeReport(report));
  return sets_.TakeReport(*lane, report, now);
}

Status Coordinator::Impl::Decide(TimePoint now) {
  std::vector<StreamItem> items;
  down_.start = sets_.position();
  if (frozen_.policy()->TakeThaw(membership_.HasNews(), now)) {
    MYDIST_RETURN_IF_ERROR(Emit({.kind = StreamKind::kThaw}, now));
  }
  if (sets_.IsDue(now)) MYDIST_RETURN_IF_ERROR(sets_.Decide(now, down_.items));
  for (StreamItem& item : membership_.Decide()) {
    MYDIST_RETURN_IF_ERROR(Emit(std::move(item), now));
  }
  if (down_.items.empty()) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(Emit({}, now));
  return DecideFreeze(now);
}

Status Coordinator::Impl::Emit(StreamItem item, TimePoint now) {
  MYDIST_RETURN_IF_ERROR(sets_.Apply(item, now));
  MYDIST_RETURN_IF_ERROR(FollowStream(item, now));
  down_.items.push_back(std::move(item));
  return Status::Ok();
}

// A batch of its own.
Status Coordinator::Impl::DecideFreeze(TimePoint now) {
  if (membership_.IsSomebodyAway() || frozen_.has_left()) return Status::Ok();
  const std::optional<size_t> length = frozen_.policy()->TakeFreeze(sets_.history(), now);
  if (!length) return Status::Ok();
  const size_t repeats = frozen_.policy()->freeze_after();
  MYDIST_RETURN_IF_ERROR(Emit(sets_.FreezeItem(*length, repeats), now));
  return Emit({}, now);
}

Status Coordinator::Impl::ReportUp(TimePoint now) {
  if (!sets_.IsDue(now) && !membership_.HasNews() && !frozen_.HasNews()) return Status::Ok();
  Report report;
  sets_.FillReport(report, now);
  membership_.FillReport(report);
  frozen_.FillReport(report);
  if (report.empty()) return Status::Ok();
  for (Bytes& message : EncodeReport(report)) {
    MYDIST_RETURN_IF_ERROR(Send(vertex_.parent, std::move(message)));
  }
  return Status::Ok();
}

Status Coordinator::Impl::SendDown() {
  const StreamSegment segment = std::exchange(down_, {});
  if (segment.items.empty() || vertex_.lanes.size() < 2) return Status::Ok();
  for (const Bytes& message : EncodeSegment(segment)) {
    for (size_t lane = 1; lane < vertex_.lanes.size(); ++lane) {
      MYDIST_RETURN_IF_ERROR(Send(vertex_.lanes[lane].peer, message));
    }
  }
  return Status::Ok();
}

Status Coordinator::Impl::SendTimeline(Bytes block) {
  if (vertex_.is_root()) {
    timeline_.push_back({options_.rank, std::move(block)});
    return Status::Ok();
  }
  Writer writer(MessageKind::kTimeline);
  writer.Raw(block);
  return port_.Send(0, std::move(writer).Take());  // Which may have left, and still collects them.
}

Status Coordinator::Impl::TakeTimelineBlock(IncomingMessage message) {
  if (!vertex_.is_root()) {
    return Status::Internal("a timeline block, which only rank 0 takes");
  }
  message.payload.erase(message.payload.begin(),
                        message.payload.begin() + std::ptrdiff_t{kMessageHeaderBytes});
  timeline_.push_back(std::move(message));
  return Status::Ok();
}

const CoordinatorStats& Coordinator::Impl::stats() {
  CoordinatorStats& stats = port_.stats();
  const NegotiatorStats negotiated = sets_.stats();
  stats.entries_received = negotiated.entries_received;
  stats.cache_hits = negotiated.cache_hits;
  stats.cache_misses = negotiated.cache_misses;
  stats.frozen_steps = frozen_.step_count();
  stats.thaws = frozen_.thaw_count();
  return stats;
}

// ---- the public face ----

Coordinator::Coordinator(CoordinatorOptions options, ControlPlane* plane, VoteBoard* board)
    : impl_(std::make_unique<Impl>(std::move(options), plane, board)) {}
Coordinator::~Coordinator() = default;

Status Coordinator::Announce(std::vector<Request> requests, TimePoint now) {
  return impl_->Announce(std::move(requests), now);
}
Status Coordinator::Depart(std::string reason, TimePoint) {
  return impl_->Depart(std::move(reason));
}
Status Coordinator::Join() { return impl_->Join(); }
Status Coordinator::RequestTimeline(bool start, bool mark_cycles) {
  impl_->Control({start, mark_cycles});
  return Status::Ok();
}
Status Coordinator::Exchange(TimePoint now) { return impl_->port().Exchange(now); }
Result<std::vector<Response>> Coordinator::Negotiate(TimePoint now) {
  return impl_->Negotiate(now);
}
void Coordinator::SetWaiting(bool waiting, TimePoint now) { impl_->SetWaiting(waiting, now); }
TimePoint Coordinator::NextDeadline() const { return impl_->NextDeadline(); }

void Coordinator::Await(TimePoint deadline) { impl_->port().Await(deadline); }

void Coordinator::Wake() { impl_->port().Wake(); }

void Coordinator::Attend(bool attended) { impl_->port().Attend(attended); }

void Coordinator::Leave(const Status& why) { impl_->Leave(why); }

Status Coordinator::SendTimeline(Bytes block) { return impl_->SendTimeline(std::move(block)); }
std::vector<IncomingMessage> Coordinator::TakeTimeline() { return impl_->TakeTimeline(); }
const CoordinatorStats& Coordinator::stats() const { return impl_->stats(); }
uint64_t Coordinator::messages_received() const { return impl_->port().stats().messages_received; }

}  // namespace mydist
