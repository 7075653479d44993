#include "controller/simulated_job.h"

#include <algorithm>

#include "world/departure.h"

namespace mydist {

Status SimulatedPlane::Send(int peer, Bytes payload) {
  if (lost_peers.contains(peer)) {
    return PeerHasLeft(peer, "rank " + std::to_string(peer), FarewellWords(job_->outcome(peer)));
  }
  const std::pair<int, int> key{rank_, peer};
  auto& wire = job_->wires_[key];
  if (wire.empty() && key != job_->held_) job_->busy_wires_.push_back(key);
  wire.push_back(std::move(payload));
  return Status::Ok();
}

void SimulatedBoard::Cast(Voice voice, const VoteWord& word, std::span<const int32_t> members) {
  VoteWord& before = job_->words_[{voice, rank_}];
  EXPECT_TRUE(word.Follows(before)) << "rank " << rank_ << " takes back a vote";
  before = word;
  for (const int32_t member : members) {
    EXPECT_TRUE(job_->ShareBoard(rank_, member)) << rank_ << " shows " << member << " its vote";
    if (member != rank_) job_->MarkDue(member);
  }
}

VoteWord SimulatedBoard::Read(Voice voice, int32_t rank) const {
  EXPECT_TRUE(job_->ShareBoard(rank_, rank)) << rank_ << " reads a vote of " << rank;
  const auto found = job_->words_.find({voice, rank});
  return found == job_->words_.end() ? VoteWord() : found->second;
}

Result<std::optional<IncomingMessage>> SimulatedPlane::Receive() {
  if (inbox.empty()) {
    if (!loss.ok()) return std::exchange(loss, Status::Ok());
    return std::optional<IncomingMessage>();
  }
  std::optional<IncomingMessage> message = std::move(inbox.front());
  inbox.pop_front();
  return message;
}

SimulatedJob::SimulatedJob(Options options)
    : options_(options), random_(options.seed), ranks_(static_cast<size_t>(options.size)) {
  std::vector<std::string> hosts;
  for (int rank = 0; options.names_hosts && rank < options.size; ++rank) {
    hosts.push_back("h" + std::to_string(rank));
  }
  for (const int host : options.hosts) hosts.push_back("h" + std::to_string(host));
  for (int rank = 0; rank < options.size; ++rank) {
    Rank& entry = ranks_[static_cast<size_t>(rank)];
    if (options.size > 1) entry.plane = std::make_unique<SimulatedPlane>(this, rank);
    entry.board = std::make_unique<SimulatedBoard>(this, rank);
    entry.coordinator =
        std::make_unique<Coordinator>(CoordinatorOptions{.rank = rank,
                                                         .size = options.size,
                                                         .radix = options.radix,
                                                         .freeze_after = options.freeze_after,
                                                         .cache_capacity = options.cache_capacity,
                                                         .stall_warning = options.stall_warning,
                                                         .stall_shutdown = options.stall_shutdown,
                                                         .vote_limits = options.vote_limits,
                                                         .hosts = hosts},
                                      entry.plane.get(), entry.board.get());
  }
}

void SimulatedJob::Announce(int rank, std::vector<Request> requests) {
  const Status status = coordinator(rank).Announce(std::move(requests), now);
  ASSERT_TRUE(status.ok()) << status.ToString();
  MarkDue(rank);
}

void SimulatedJob::Depart(int rank, const std::string& reason) {
  const Status status = coordinator(rank).Depart(reason);
  ASSERT_TRUE(status.ok()) << status.ToString();
  MarkDue(rank);
}

void SimulatedJob::Join(int rank) {
  const Status status = coordinator(rank).Join();
  ASSERT_TRUE(status.ok()) << status.ToString();
  MarkDue(rank);
}

Status SimulatedJob::Step(int rank) {
  Rank& entry = ranks_[static_cast<size_t>(rank)];
  const bool had_news = entry.plane != nullptr && !entry.plane->inbox.empty();
  const bool was_due = entry.coordinator->NextDeadline() <= now;
  MYDIST_RETURN_IF_ERROR(entry.coordinator->Exchange(now));
  MYDIST_ASSIGN_OR_RETURN(Batch batch, entry.coordinator->Negotiate(now));
  if (had_news || was_due || !batch.empty()) MarkDue(rank);
  if (!batch.empty()) entry.batches.push_back(std::move(batch));
  return Status::Ok();
}

bool SimulatedJob::DeliverOne() {
  if (busy_wires_.empty()) return false;
  const size_t pick = random_() % busy_wires_.size();
  const auto [source, target] = busy_wires_[pick];
  auto& wire = wires_[{source, target}];
  if (!HasCrashed(target)) plane(target).inbox.push_back({source, std::move(wire.front())});
  wire.pop_front();
  if (wire.empty()) {
    busy_wires_[pick] = busy_wires_.back();
    busy_wires_.pop_back();
  }
  MarkDue(target);
  return true;
}

bool SimulatedJob::Progress() {
  const size_t choices = busy_wires_.size() + due_.size();
  if (choices == 0) return false;
  if (random_() % choices < busy_wires_.size()) return DeliverOne();
  const size_t pick = random_() % due_.size();
  const int rank = due_[pick];
  due_[pick] = due_.back();
  due_.pop_back();
  ranks_[static_cast<size_t>(rank)].is_due = false;
  if (HasCrashed(rank)) return true;
  const Status status = Step(rank);
  const bool follows = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& entry) {
    return entry.has_left || entry.has_crashed;
  });
  if (follows && status.is_loss()) {
    Fail(rank, status);
    return true;
  }
  EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.ToString();
  return status.ok();
}

void SimulatedJob::Crash(int rank) {
  ranks_[static_cast<size_t>(rank)].has_crashed = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank) plane(peer).loss = Status::PeerLost("rank " + std::to_string(rank));
  }
  MarkAllDue();
}

void SimulatedJob::Leave(int rank, const Status& why) {
  coordinator(rank).Leave(why);
  ranks_[static_cast<size_t>(rank)].has_left = true;
}

// As Engine::Stop.
void SimulatedJob::Fail(int rank, const Status& why) {
  Rank& entry = ranks_[static_cast<size_t>(rank)];
  Coordinator& coordinator = *entry.coordinator;
  [[maybe_unused]] const bool told = why.code() != StatusCode::kPeerLost &&
                                     coordinator.Depart(why.ToString()).ok() &&
                                     coordinator.Negotiate(now).ok();
  Leave(rank, why);
  entry.outcome = why;
  entry.has_crashed = true;
  for (int peer = 0; peer < size(); ++peer) plane(peer).lost_peers.insert(rank);
}

void SimulatedJob::Release() {
  const std::pair<int, int> key = std::exchange(held_, {-1, -1});
  if (!wires_[key].empty()) busy_wires_.push_back(key);
}

void SimulatedJob::MarkAllDue() {
  for (int rank = 0; rank < size(); ++rank) MarkDue(rank);
}

void SimulatedJob::RunUntilQuiet() {
  MarkAllDue();
  while (Progress()) {
  }
}

void SimulatedJob::MarkDue(int rank) {
  Rank& entry = ranks_[static_cast<size_t>(rank)];
  if (entry.has_crashed || std::exchange(entry.is_due, true)) return;
  due_.push_back(rank);
}

std::vector<std::string> SimulatedJob::Log(int rank) const {
  std::vector<std::string> log;
  for (const Batch& batch : batches(rank)) {
    for (const Response& response : batch) log.push_back(ResponseText(response));
    log.emplace_back("|");
  }
  return log;
}

std::vector<std::string> SimulatedJob::Errors(int rank) const {
  std::vector<std::string> errors;
  for (const Batch& batch : batches(rank)) {
    for (const Response& response : batch) {
      if (response.kind == ResponseKind::kError) errors.push_back(response.status.ToString());
    }
  }
  return errors;
}

std::vector<std::string> SimulatedJob::Stalls(int rank) const {
  std::vector<std::string> stalls;
  for (const Batch& batch : batches(rank)) {
    for (const Response& response : batch) {
      if (response.kind == ResponseKind::kStall) stalls.push_back(response.status.message());
    }
  }
  return stalls;
}

uint64_t SimulatedJob::MessagesSent() const {
  uint64_t sent = 0;
  for (const Rank& rank : ranks_) sent += rank.coordinator->stats().control_messages_sent;
  return sent;
}

Request MakeRequest(std::string name, std::vector<int64_t> dims) {
  Request request;
  request.name = std::move(name);
  request.shape = Shape(std::move(dims));
  return request;
}

std::string ResponseText(const Response& response) {
  switch (response.kind) {
    case ResponseKind::kReady: {
      std::string text = "ready " + response.agreement->request.name + " " +
                         response.agreement->request.shape.ToString();
      for (const int64_t dim : response.agreement->first_dims) text += " " + std::to_string(dim);
      return text;
    }
    case ResponseKind::kError:
      return "error " + response.name + ": " + response.status.ToString();
    case ResponseKind::kStall:
      return "stall " + response.name;
    case ResponseKind::kDeparted:
      return "departed " + std::to_string(response.rank) + ": " + response.status.ToString();
    case ResponseKind::kFinished:
      return "finished";
    case ResponseKind::kTimelineStart:
      return response.flag ? "timeline start with cycles" : "timeline start";
    case ResponseKind::kTimelineStop:
      return "timeline stop";
    case ResponseKind::kAllJoined:
      return "all joined, last " + std::to_string(response.rank);
  }
  return "?";
}

}  // namespace mydist
