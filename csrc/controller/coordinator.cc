#include "controller/coordinator.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/log.h"
#include "controller/messages/report.h"
#include "controller/messages/wire.h"

namespace mydist {

Status Coordinator::Announce(std::vector<Request> requests, TimePoint now) {
  if (joining_ != Joining::kNo && !requests.empty()) {
    return Status::InvalidArgument("tensor '" + requests.front().name +
                                   "' was submitted after join(). Wait until join() returns on "
                                   "this rank before you submit tensors.");
  }
  if (frozen_.active()) return frozen_.Submit(std::move(requests), now);
  return sets_.Submit(requests, now);
}

Status Coordinator::Join() {
  if (joining_ != Joining::kNo) {
    return Status::InvalidArgument(
        "join() is already in progress on this rank; wait for it to return");
  }
  joining_ = Joining::kWanted;
  frozen_.Break();
  return Status::Ok();
}

// Announced only when this rank has nothing in flight: from then on no rank waits for it.
Status Coordinator::FollowJoin() {
  if (joining_ != Joining::kWanted || HasOwnInFlight()) return Status::Ok();
  joining_ = Joining::kTold;
  sets_.Join(options_.rank);
  return membership_.Join(options_.rank);
}

Status Coordinator::Depart(std::string reason) {
  port_.ExpectLosses();
  is_leaving_ = true;
  frozen_.Break();
  return membership_.Depart({options_.rank, std::move(reason)});
}

bool Coordinator::HasWork() const {
  return !batches_.empty() || port_.HasMessages() || membership_.HasNews() || sets_.HasNews() ||
         frozen_.HasNews() || (joining_ == Joining::kWanted && !HasOwnInFlight()) || !Loss().ok();
}

// What ends this rank: it waits for something of one that has left with an error. A vote once cast
// is only given up with the rank that had to tell its outcome, and where nothing becomes ready any
// more a rank waits for nothing, until it leaves and waits for the others to do so.
const Status& Coordinator::Loss() const {
  static const Status kNone;
  if (frozen_.HasUndecidedVote()) return frozen_.LossOfOutcome();
  const bool waits = !sets_.departed() || is_leaving_;
  return waits && !frozen_.has_left() ? farewells_.loss() : kNone;
}

TimePoint Coordinator::NextDeadline() const {
  if (HasWork()) return kPast;
  return std::min({port_.NextDeadline(), sets_.NextDeadline(), frozen_.NextDeadline()});
}

Result<std::vector<Response>> Coordinator::Negotiate(TimePoint now) {
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
Status Coordinator::TakeIn(TimePoint now) {
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
    if (kind.ok() && *kind == MessageKind::kQuestion) status = TakeQuestion(message);
    if (kind.ok() && *kind == MessageKind::kAnswer) status = inquirer_.TakeAnswer(message);
    if (kind.ok() && *kind == MessageKind::kTimeline) {
      status = TakeTimelineBlock(std::move(message));
    }
    if (status.ok()) continue;
    return status.WithContext("control message from " + RankText(source, options_.hosts));
  }
  return Status::Ok();
}

Status Coordinator::TakeSegment(const IncomingMessage& message, TimePoint now) {
  if (message.source != vertex_.parent) {
    return Status::Internal("got a segment of the stream, expected it from the parent, rank " +
                            std::to_string(vertex_.parent));
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

Status Coordinator::ApplyWholeBatches(TimePoint now) {
  const auto last = std::find_if(partial_.rbegin(), partial_.rend(), [](const StreamItem& item) {
    return item.kind == StreamKind::kBoundary;
  });
  const auto end = last.base();
  const uint64_t start = sets_.position();
  for (auto item = partial_.begin(); item != end; ++item) {
    if (item->kind == StreamKind::kAllJoined && joining_ != Joining::kTold) {
      return Status::Internal("the root reports that all ranks have joined, but this rank has not");
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
void Coordinator::FinishBatch() {
  std::vector<Response> batch = sets_.TakeResponses();
  for (const Response& response : batch) {
    if (response.kind == ResponseKind::kDeparted) {
      port_.ExpectLosses();
      has_other_departed_ = has_other_departed_ || response.rank != options_.rank;
    }
    if (response.kind != ResponseKind::kAllJoined) continue;
    membership_.ResetJoined();
    joining_ = Joining::kNo;
  }
  if (!batch.empty()) Return(std::move(batch));
}

void Coordinator::Return(std::vector<Response> batch) {
  if (frozen_.HasUndecidedVote()) return behind_vote_.push_back(std::move(batch));
  // Only now: the peer whose vote is missing may be lost.
  for (const Response& response : batch) {
    if (response.kind == ResponseKind::kFinished) port_.Finish();
  }
  batches_.push_back(std::move(batch));
}

// The effects of an applied item beyond the process sets.
Status Coordinator::FollowStream(const StreamItem& item, TimePoint now) {
  if (item.kind == StreamKind::kBoundary) FinishBatch();
  if (item.kind == StreamKind::kThaw) frozen_.Break();
  if (item.kind != StreamKind::kFreeze) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(frozen_.Freeze(sets_.TakeFrozen(), now));
  if (!MayRest()) frozen_.Break();
  return Status::Ok();
}

// Whether this rank has nothing on its mind but tensors.
bool Coordinator::MayRest() const {
  return joining_ == Joining::kNo && !is_leaving_ && !membership_.HasNews();
}

Status Coordinator::FollowFrozen(TimePoint now) {
  if (!frozen_.active()) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(const FrozenMode::Outcome outcome, frozen_.Follow(now));
  for (const Bucket& bucket : outcome.executed) {
    std::vector<Response>& batch = batches_.emplace_back();
    for (const auto& agreement : bucket.tensors) {
      batch.push_back({.agreement = agreement, .process_set = bucket.process_set});
    }
  }
  for (const FrozenMode::HostVote& vote : outcome.told) MYDIST_RETURN_IF_ERROR(SendVote(vote));
  if (frozen_.HasUndecidedVote()) return Status::Ok();
  AnnounceThawed(outcome.thawed, now);
  for (std::vector<Response>& batch : std::exchange(behind_vote_, {})) Return(std::move(batch));
  return Status::Ok();
}

// To one that has left it goes nowhere; one that has departed may do so at any time.
Status Coordinator::Send(int32_t peer, Bytes message) {
  if (farewells_.HasLeft(peer)) return Status::Ok();
  if (membership_.HasDeparted(peer)) return port_.SendIfThere(peer, std::move(message));
  return port_.Send(peer, std::move(message));
}

// One that has gone must not keep it from the others, and its farewell or its loss is under way.
Status Coordinator::SendVote(const FrozenMode::HostVote& vote) {
  for (const int32_t leader : vote.leaders) {
    MYDIST_RETURN_IF_ERROR(port_.SendIfThere(leader, EncodeVote(vote.word)));
    ++port_.stats().host_votes_sent;
  }
  return Status::Ok();
}

Status Coordinator::TakeVote(const IncomingMessage& message) {
  MYDIST_ASSIGN_OR_RETURN(const VoteWord word, DecodeVote(message.payload));
  ++port_.stats().host_votes_received;
  return frozen_.TakeVote(message.source, word);
}

Status Coordinator::TakeFarewell(const IncomingMessage& message) {
  MYDIST_ASSIGN_OR_RETURN(const Farewell farewell, DecodeFarewell(message.payload));
  if (on_progress_) on_progress_(farewell.progress);
  if (frozen_.has_left()) return Status::Ok();
  farewells_.Take(message.source, farewell);
  MYDIST_RETURN_IF_ERROR(inquirer_.TakeFarewell(message.source));
  if (!farewell.is_told || !vertex_.is_root()) return Status::Ok();
  return membership_.Depart({message.source, farewell.why});
}

// One at a time: what cannot be announced any more fails alone. But members of a group miss a turn
// together, as their ranks have given it up once.
void Coordinator::AnnounceThawed(const std::vector<Request>& requests, TimePoint now) {
  std::map<std::pair<ProcessSetId, std::string>, Status> missed;  // By group.
  for (const Request& request : requests) {
    const std::pair group(request.process_set, request.group);
    const auto known = request.group.empty() ? missed.end() : missed.find(group);
    Status status = known == missed.end() ? sets_.Submit({request}, now) : known->second;
    if (status.ok()) continue;
    if (status.code() == StatusCode::kTimeout) missed.emplace(group, status);
    batches_.push_back({{.kind = ResponseKind::kError,
                         .name = request.name,
                         .process_set = request.process_set,
                         .status = std::move(status)}});
  }
}

Status Coordinator::TakeReport(const IncomingMessage& message, TimePoint now) {
  MYDIST_ASSIGN_OR_RETURN(const Report report, DecodeReport(message.payload));
  const auto lane = vertex_.LaneOf(message.source);
  if (!lane) return Status::Internal("got a report from a rank that is not a child of this rank");
  uint32_t& expected = reports_taken_[*lane];
  if (report.number != expected) {
    return Status::Internal("got its report number " + std::to_string(report.number) +
                            ", expected number " + std::to_string(expected));
  }
  ++expected;
  MYDIST_RETURN_IF_ERROR(CheckSpeaker(report, vertex_.lanes[*lane]));
  MYDIST_RETURN_IF_ERROR(membership_.TakeReport(report));
  MYDIST_RETURN_IF_ERROR(frozen_.TakeReport(report));
  return sets_.TakeReport(*lane, report, now);
}

Status Coordinator::Decide(TimePoint now) {
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

Status Coordinator::Emit(StreamItem item, TimePoint now) {
  MYDIST_RETURN_IF_ERROR(sets_.Apply(item, now));
  MYDIST_RETURN_IF_ERROR(FollowStream(item, now));
  down_.items.push_back(std::move(item));
  return Status::Ok();
}

// A batch of its own.
Status Coordinator::DecideFreeze(TimePoint now) {
  if (membership_.IsSomebodyAway() || frozen_.has_left()) return Status::Ok();
  const std::optional<size_t> length = frozen_.policy()->TakeFreeze(sets_.history(), now);
  if (!length) return Status::Ok();
  const size_t repeats = frozen_.policy()->freeze_after();
  MYDIST_RETURN_IF_ERROR(Emit(sets_.FreezeItem(*length, repeats), now));
  return Emit({}, now);
}

Status Coordinator::ReportUp(TimePoint now) {
  if (!sets_.IsDue(now) && !membership_.HasNews() && !frozen_.HasNews()) return Status::Ok();
  Report report{.number = reports_sent_};
  sets_.FillReport(report, now);
  membership_.FillReport(report);
  frozen_.FillReport(report);
  if (report.empty()) return Status::Ok();
  for (Bytes& message : EncodeReport(report)) {
    ++reports_sent_;
    MYDIST_RETURN_IF_ERROR(Send(vertex_.parent, std::move(message)));
  }
  return Status::Ok();
}

Status Coordinator::SendDown() {
  const StreamSegment segment = std::exchange(down_, {});
  if (segment.items.empty() || vertex_.lanes.size() < 2) return Status::Ok();
  for (const Bytes& message : EncodeSegment(segment)) {
    for (size_t lane = 1; lane < vertex_.lanes.size(); ++lane) {
      MYDIST_RETURN_IF_ERROR(Send(vertex_.lanes[lane].peer, message));
    }
  }
  return Status::Ok();
}

}  // namespace mydist
