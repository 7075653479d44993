#include "controller/process_set_table.h"

#include <algorithm>

#include "controller/fusion_planner.h"
#include "world/departure.h"
#include "world/process_set.h"

namespace mydist {
namespace {

Status Wrong(const Request& request, const std::string& what) {
  return Status::Internal("the root announced " + CallText(request) + " " + what);
}

bool IsChange(const StreamItem& item) {
  return item.kind == StreamKind::kReadyAgreement && ChangesProcessSets(item.agreement->request.op);
}

}  // namespace

ProcessSetTable::ProcessSetTable(Vertex vertex, NegotiatorOptions options)
    : vertex_(std::move(vertex)),
      options_(std::move(options)),
      lane_positions_(vertex_.lanes.size()) {
  options_.all_waiting = [this] { return AllWaiting(); };
  Add(GlobalProcessSet(options_.size).ranks);
}

std::vector<WaitingTensor> ProcessSetTable::AllWaiting() const {
  std::vector<WaitingTensor> all;
  for (const auto& [id, negotiator] : negotiators_) {
    for (WaitingTensor& tensor : negotiator->WaitingTensors()) all.push_back(std::move(tensor));
  }
  return all;
}

void ProcessSetTable::Add(std::vector<int> ranks) {
  const ProcessSetId id = next_id_++;
  auto negotiator =
      std::make_unique<Negotiator>(ProcessSet{id, std::move(ranks)}, vertex_, options_, &stream_);
  if (departed_) negotiator->Close();
  negotiators_.emplace(id, std::move(negotiator));
}

Negotiator* ProcessSetTable::Find(ProcessSetId id) const {
  const auto it = negotiators_.find(id);
  return it == negotiators_.end() ? nullptr : it->second.get();
}

Status ProcessSetTable::Submit(const std::vector<Request>& requests, TimePoint now) {
  if (requests.empty()) return Status::Ok();
  for (const Request& request : requests) {
    const ProcessSetId id = request.process_set;
    if (Find(id) == nullptr) {
      return Status::InvalidArgument("tensor '" + request.name + "': process set " +
                                     std::to_string(id) +
                                     " is unknown or has been removed. Add it first.");
    }
    if (id == requests.front().process_set) continue;
    return Status::InvalidArgument(
        "tensor '" + request.name + "' is for process set " + std::to_string(id) +
        ", but other tensors of the same call are for process set " +
        std::to_string(requests.front().process_set) + ". Submit them in separate calls.");
  }
  return Find(requests.front().process_set)->Submit(requests, now);
}

Status ProcessSetTable::TakeReport(size_t lane, const Report& report, TimePoint now) {
  const uint64_t position = report.stream_position;
  if (position < lane_positions_[lane] || position > stream_.position) {
    return Status::Internal("a report was made at stream position " + std::to_string(position) +
                            ", expected " + std::to_string(lane_positions_[lane]) + " to " +
                            std::to_string(stream_.position));
  }
  lane_positions_[lane] = position;
  for (const int32_t rank : report.joins) Join(rank);
  for (const auto& [id, set] : report.sets) {
    MYDIST_RETURN_IF_ERROR(TakeSetReport(vertex_.lanes[lane].peer, id, report, now));
  }
  // Lane 0 is this rank itself, which is never behind.
  const uint64_t oldest = *std::min_element(lane_positions_.begin() + 1, lane_positions_.end());
  for (const auto& [id, negotiator] : negotiators_) negotiator->ForgetBefore(oldest);
  return Status::Ok();
}

Status ProcessSetTable::TakeSetReport(int32_t peer, ProcessSetId id, const Report& report,
                                      TimePoint now) {
  Negotiator* negotiator = Find(id);
  if (negotiator != nullptr) {
    return negotiator->TakeReport(peer, report.sets.at(id), report.stream_position, now);
  }
  // A report that was on its way when the set was removed is dropped.
  if (id >= 0 && id < next_id_) return Status::Ok();
  return Status::Internal("a report is about process set " + std::to_string(id) +
                          ", which does not exist");
}

void ProcessSetTable::Join(int32_t rank) {
  for (const auto& [id, negotiator] : negotiators_) negotiator->Join(rank);
}

Status ProcessSetTable::Apply(const StreamItem& item, TimePoint now) {
  MYDIST_RETURN_IF_ERROR(CheckItem(item));
  if (!ConcernsProcessSet(item.kind)) return ApplyToJob(item, now);
  MYDIST_RETURN_IF_ERROR(Find(item.process_set)->Apply(item));
  FollowChange(item);
  return Status::Ok();
}

// Checks that decoding cannot make and the engine relies on.
Status ProcessSetTable::CheckItem(const StreamItem& item) const {
  const bool names_rank = item.kind == StreamKind::kDeparted || item.kind == StreamKind::kAllJoined;
  if (names_rank && (item.rank < 0 || item.rank >= options_.size)) {
    return Status::Internal("rank " + std::to_string(item.rank) +
                            " is reported to have left or joined, expected rank 0 to " +
                            std::to_string(options_.size - 1));
  }
  if (!ConcernsProcessSet(item.kind)) return Status::Ok();
  const Negotiator* negotiator = Find(item.process_set);
  if (negotiator == nullptr) {
    return Status::Internal("the root names process set " + std::to_string(item.process_set) +
                            ", which does not exist");
  }
  if (item.kind != StreamKind::kReadyAgreement) return Status::Ok();
  return CheckAgreement(*item.agreement, negotiator->set());
}

Status ProcessSetTable::CheckAgreement(const Agreement& agreement, const ProcessSet& set) const {
  const Request& request = agreement.request;
  if (request.process_set != set.id) {
    return Wrong(request, "for another process set than the item says");
  }
  const size_t expected = GathersRows(request.op) ? static_cast<size_t>(set.size()) : 0;
  if (agreement.first_dims.size() != expected) {
    return Wrong(request, "with " + std::to_string(agreement.first_dims.size()) +
                              " first dimensions, expected " + std::to_string(expected));
  }
  if (HasUncountableRows(agreement)) return Wrong(request, "with more rows than can be counted");
  const Status ranks = CheckRanks(request, set);
  return ranks.ok() ? ranks : Status::Internal("from the root: " + ranks.message());
}

Status ProcessSetTable::ApplyToJob(const StreamItem& item, TimePoint now) {
  ++stream_.position;
  if (item.kind == StreamKind::kFreeze) return ApplyFreeze(item.frozen);
  if (item.kind != StreamKind::kBoundary) stream_.history.Reset();
  switch (item.kind) {
    case StreamKind::kBoundary:
      stream_.history.EndBatch();
      for (const auto& [id, negotiator] : negotiators_) negotiator->ApplyBoundary(now);
      break;
    case StreamKind::kDeparted:
      ApplyDeparture(item);
      break;
    case StreamKind::kAllJoined:
      for (const auto& [id, negotiator] : negotiators_) negotiator->ResetJoined();
      stream_.responses.push_back({.kind = ResponseKind::kAllJoined, .rank = item.rank});
      break;
    case StreamKind::kFinished:
      stream_.responses.push_back({.kind = ResponseKind::kFinished});
      break;
    case StreamKind::kTimelineStart:
      stream_.responses.push_back({.kind = ResponseKind::kTimelineStart, .flag = item.flag});
      break;
    case StreamKind::kTimelineStop:
      stream_.responses.push_back({.kind = ResponseKind::kTimelineStop});
      break;
    case StreamKind::kThaw:
      break;
    default:
      return Status::Internal("the stream has an item of unknown kind");
  }
  return Status::Ok();
}

StreamItem ProcessSetTable::FreezeItem(size_t length, size_t repeats) const {
  return {.kind = StreamKind::kFreeze,
          .frozen = {.length = static_cast<uint32_t>(length),
                     .repeats = static_cast<uint32_t>(repeats),
                     .hash = HashOf(stream_.history.Cut(length, repeats))}};
}

Status ProcessSetTable::ApplyFreeze(const FrozenStep& step) {
  if (step.repeats < 2 || !stream_.history.IsStep(step.length, step.repeats)) {
    return Status::Internal("the root froze a step of " + std::to_string(step.length) +
                            " tensors that did not occur " + std::to_string(step.repeats) +
                            " times");
  }
  std::vector<Bucket> buckets = stream_.history.Cut(step.length, step.repeats);
  if (HashOf(buckets) != step.hash) {
    return Status::Internal("the root froze a schedule that differs from this rank's schedule");
  }
  stream_.history.Reset();
  for (Bucket& bucket : buckets) {
    const Negotiator* negotiator = Find(bucket.process_set);
    if (negotiator == nullptr)
      return Status::Internal("the root froze a process set that has been removed");
    const std::vector<int>& ranks = negotiator->set().ranks;
    frozen_.buckets.push_back({std::move(bucket), {ranks.begin(), ranks.end()}});
  }
  for (const auto& [id, negotiator] : negotiators_) {
    for (Request& request : negotiator->Freeze()) frozen_.own.push_back(std::move(request));
  }
  return Status::Ok();
}

void ProcessSetTable::ApplyDeparture(const StreamItem& item) {
  departed_ = true;
  for (const auto& [id, negotiator] : negotiators_) negotiator->Close();
  const Status left =
      PeerHasLeft(item.rank, RankText(item.rank, options_.hosts, options_.pids), item.text);
  const bool is_timeout = left.code() == StatusCode::kTimeout;
  stream_.responses.push_back(
      {.kind = ResponseKind::kDeparted,
       .status = Status(is_timeout ? StatusCode::kTimeout : StatusCode::kAborted, left.message())
                     .About({.ranks = left.failure().ranks,
                             .finding = is_timeout ? left.failure().finding : "",
                             .cause = left.cause()}),
       .rank = item.rank});
}

void ProcessSetTable::FollowChange(const StreamItem& item) {
  if (!IsChange(item)) return;
  const Request& request = item.agreement->request;
  if (request.op == OpKind::kAddProcessSet) {
    // The first one without a number: every rank of the job has a response to it.
    const auto response = std::find_if(
        stream_.responses.begin(), stream_.responses.end(), [&](const Response& candidate) {
          return candidate.agreement == item.agreement && candidate.added_set == kGlobalProcessSet;
        });
    if (response != stream_.responses.end()) response->added_set = next_id_;
    Add({request.ranks.begin(), request.ranks.end()});
    return;
  }
  const auto removed = negotiators_.find(request.process_set);
  removed->second->Remove();
  removed_stats_.Add(removed->second->stats());
  negotiators_.erase(removed);
}

Status ProcessSetTable::Decide(TimePoint now, std::vector<StreamItem>& items) {
  std::vector<ProcessSetId> ids;
  for (const auto& [id, negotiator] : negotiators_) ids.push_back(id);
  for (const ProcessSetId id : ids) {
    const size_t first = items.size();
    MYDIST_RETURN_IF_ERROR(negotiators_.at(id)->Decide(now, items));
    for (size_t i = first; i < items.size(); ++i) FollowChange(items[i]);
  }
  return Status::Ok();
}

void ProcessSetTable::FillReport(Report& report, TimePoint now) {
  report.stream_position = stream_.position;
  for (const auto& [id, negotiator] : negotiators_) {
    SetReport set = negotiator->TakeReportToParent(now);
    if (!set.empty()) report.sets.emplace(id, std::move(set));
  }
}

bool ProcessSetTable::HasNews() const {
  return std::any_of(negotiators_.begin(), negotiators_.end(),
                     [](const auto& entry) { return entry.second->HasNews(); });
}

TimePoint ProcessSetTable::NextDeadline() const {
  TimePoint deadline = kNever;
  for (const auto& [id, negotiator] : negotiators_) {
    deadline = std::min(deadline, negotiator->NextDeadline());
  }
  return deadline;
}

bool ProcessSetTable::HasOwnInFlight() const {
  return std::any_of(negotiators_.begin(), negotiators_.end(),
                     [](const auto& entry) { return entry.second->HasOwnInFlight(); });
}

std::vector<int32_t> ProcessSetTable::AwaitedWith(ProcessSetId id, const std::string& name) const {
  const Negotiator* negotiator = Find(id);
  if (negotiator == nullptr) return {};
  std::vector<int32_t> awaited = negotiator->MissingRanks(name);
  const bool is_known = !awaited.empty() || negotiator->HasOwnInFlight(name);
  // What else it waits for, it tells.
  if (is_known && !vertex_.is_root()) awaited.push_back(vertex_.parent);
  return awaited;
}

NegotiatorStats ProcessSetTable::stats() const {
  NegotiatorStats total = removed_stats_;
  for (const auto& [id, negotiator] : negotiators_) total.Add(negotiator->stats());
  return total;
}

}  // namespace mydist
