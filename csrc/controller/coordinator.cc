#include "controller/coordinator.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "controller/control_port.h"
#include "controller/membership.h"
#include "controller/message_codec.h"
#include "controller/process_set_table.h"
#include "controller/rank_list.h"
#include "controller/tree.h"
#include "controller/wire.h"

namespace mydist {
namespace {

constexpr TimePoint kPast = TimePoint::min();

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
  Impl(CoordinatorOptions options, ControlPlane* plane)
      : options_(std::move(options)),
        vertex_(MakeVertex(options_.rank, options_.size, options_.radix, options_.hosts)),
        port_(plane),
        membership_(options_.size),
        sets_(vertex_, OptionsOf(options_)) {
    MYDIST_CHECK((plane == nullptr) == (options_.size == 1));
  }

  Status Announce(const std::vector<Request>& requests, TimePoint now);
  Status Join();
  Status Depart(std::string reason);
  void Control(TimelineControl control) { membership_.Control(control); }
  Result<std::vector<Response>> Negotiate(TimePoint now);
  TimePoint NextDeadline() const;
  ControlPort& port() { return port_; }
  Status SendTimeline(Bytes block);
  std::vector<IncomingMessage> TakeTimeline() { return std::exchange(timeline_, {}); }
  const CoordinatorStats& stats();

 private:
  bool HasWork() const;
  Status TakeIn(TimePoint now);
  Status TakeSegment(const IncomingMessage& message, TimePoint now);
  Status TakeReport(const IncomingMessage& message, TimePoint now);
  Status TakeTimelineBlock(IncomingMessage message);
  Status ApplyWholeBatches(TimePoint now);
  void FinishBatch();
  Status FollowJoin();
  Status Decide(TimePoint now);
  Status ReportUp(TimePoint now);
  Status SendDown();

  const CoordinatorOptions options_;
  const Vertex vertex_;
  ControlPort port_;
  Membership membership_;
  ProcessSetTable sets_;
  Joining joining_ = Joining::kNo;

  StreamSegment down_;                         // For the children, not yet sent.
  std::vector<StreamItem> partial_;            // Received items behind the last boundary.
  std::deque<std::vector<Response>> batches_;  // To be returned, one at a time.
  std::vector<IncomingMessage> timeline_;
};

Status Coordinator::Impl::Announce(const std::vector<Request>& requests, TimePoint now) {
  if (joining_ != Joining::kNo && !requests.empty()) {
    return Status::InvalidArgument("tensor '" + requests.front().name +
                                   "' was submitted after join(). This rank takes part in "
                                   "everything until all ranks have joined; wait for that.");
  }
  return sets_.Submit(requests, now);
}

Status Coordinator::Impl::Join() {
  if (joining_ != Joining::kNo) {
    return Status::InvalidArgument("join() has been called already and has not returned yet");
  }
  joining_ = Joining::kWanted;
  return Status::Ok();
}

// Told only when nothing of ours is in flight: from then on everybody may do without us.
Status Coordinator::Impl::FollowJoin() {
  if (joining_ != Joining::kWanted || sets_.HasOwnInFlight()) return Status::Ok();
  joining_ = Joining::kTold;
  sets_.Join(options_.rank);
  return membership_.Join(options_.rank);
}

Status Coordinator::Impl::Depart(std::string reason) {
  port_.ExpectLosses();
  return membership_.Depart({options_.rank, std::move(reason)});
}

bool Coordinator::Impl::HasWork() const {
  return !batches_.empty() || port_.HasMessages() || membership_.HasNews() || sets_.HasNews() ||
         (joining_ == Joining::kWanted && !sets_.HasOwnInFlight());
}

TimePoint Coordinator::Impl::NextDeadline() const {
  return HasWork() ? kPast : std::min(port_.NextDeadline(), sets_.NextDeadline());
}

Result<std::vector<Response>> Coordinator::Impl::Negotiate(TimePoint now) {
  MYDIST_RETURN_IF_ERROR(TakeIn(now));
  MYDIST_RETURN_IF_ERROR(FollowJoin());
  MYDIST_RETURN_IF_ERROR(vertex_.is_root() ? Decide(now) : ReportUp(now));
  MYDIST_RETURN_IF_ERROR(SendDown());
  if (batches_.empty()) return std::vector<Response>();
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
    if (item->kind == StreamKind::kBoundary) FinishBatch();
  }
  if (down_.items.empty()) down_.start = start;
  down_.items.insert(down_.items.end(), std::make_move_iterator(partial_.begin()),
                     std::make_move_iterator(end));
  partial_.erase(partial_.begin(), end);
  return Status::Ok();
}

void Coordinator::Impl::FinishBatch() {
  std::vector<Response> batch = sets_.TakeResponses();
  for (const Response& response : batch) {
    if (response.kind == ResponseKind::kDeparted) port_.ExpectLosses();
    if (response.kind == ResponseKind::kFinished) port_.Finish();
    if (response.kind != ResponseKind::kAllJoined) continue;
    membership_.ResetJoined();
    joining_ = Joining::kNo;
  }
  if (!batch.empty()) batches_.push_back(std::move(batch));
}

Status Coordinator::Impl::TakeReport(const IncomingMessage& message, TimePoint now) {
  MYDIST_ASSIGN_OR_RETURN(const Report report, DecodeReport(message.payload));
  MYDIST_RETURN_IF_ERROR(membership_.TakeReport(report));
  return sets_.TakeReport(message.source, report, now);
}

Status Coordinator::Impl::Decide(TimePoint now) {
  std::vector<StreamItem> items;
  const uint64_t start = sets_.position();
  MYDIST_RETURN_IF_ERROR(sets_.Decide(now, items));
  for (StreamItem& item : membership_.Decide()) {
    MYDIST_RETURN_IF_ERROR(sets_.Apply(item, now));
    items.push_back(std::move(item));
  }
  if (items.empty()) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(sets_.Apply(items.emplace_back(), now));
  FinishBatch();
  down_ = {start, std::move(items)};
  return Status::Ok();
}

Status Coordinator::Impl::ReportUp(TimePoint now) {
  Report report;
  sets_.FillReport(report, now);
  membership_.FillReport(report);
  if (report.empty()) return Status::Ok();
  for (Bytes& message : EncodeReport(report)) {
    MYDIST_RETURN_IF_ERROR(port_.Send(vertex_.parent, std::move(message)));
  }
  return Status::Ok();
}

Status Coordinator::Impl::SendDown() {
  const StreamSegment segment = std::exchange(down_, {});
  if (segment.items.empty() || vertex_.lanes.size() < 2) return Status::Ok();
  for (const Bytes& message : EncodeSegment(segment)) {
    for (size_t lane = 1; lane < vertex_.lanes.size(); ++lane) {
      MYDIST_RETURN_IF_ERROR(port_.Send(vertex_.lanes[lane].peer, message));
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
  return port_.Send(0, std::move(writer).Take());
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
  return stats;
}

// ---- the public face ----

Coordinator::Coordinator(CoordinatorOptions options, ControlPlane* plane)
    : impl_(std::make_unique<Impl>(std::move(options), plane)) {}
Coordinator::~Coordinator() = default;

Status Coordinator::Announce(std::vector<Request> requests, TimePoint now) {
  return impl_->Announce(requests, now);
}
Status Coordinator::Depart(std::string reason, TimePoint) {
  return impl_->Depart(std::move(reason));
}
Status Coordinator::Join() { return impl_->Join(); }
Status Coordinator::RequestTimeline(bool start, bool mark_cycles) {
  impl_->Control({start, mark_cycles});
  return Status::Ok();
}
Status Coordinator::Exchange() { return impl_->port().Exchange(); }
Result<std::vector<Response>> Coordinator::Negotiate(TimePoint now) {
  return impl_->Negotiate(now);
}
TimePoint Coordinator::NextDeadline() const { return impl_->NextDeadline(); }

void Coordinator::Await(TimePoint deadline) { impl_->port().Await(deadline); }

void Coordinator::Wake() { impl_->port().Wake(); }

void Coordinator::Attend(bool attended) { impl_->port().Attend(attended); }
Status Coordinator::SendTimeline(Bytes block) { return impl_->SendTimeline(std::move(block)); }
std::vector<IncomingMessage> Coordinator::TakeTimeline() { return impl_->TakeTimeline(); }
const CoordinatorStats& Coordinator::stats() const { return impl_->stats(); }

}  // namespace mydist
