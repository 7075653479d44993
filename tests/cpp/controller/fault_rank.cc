#include "controller/fault_rank.h"

#include <algorithm>

#include "controller/simulated_job.h"
#include "world/departure.h"

namespace mydist {
namespace {

constexpr Duration kFaultDrain = std::chrono::seconds(10);

Topology TopologyOf(const FaultProgram& program, int rank) {
  Topology topology;
  topology.rank = rank;
  topology.size = program.size;
  topology.hosts = program.HostNames();
  return topology;
}

CoordinatorOptions OptionsOf(const FaultProgram& program, int rank) {
  return {.rank = rank,
          .size = program.size,
          .radix = program.radix,
          .freeze_after = program.freeze_after,
          .cache_capacity = program.cache_capacity,
          .stall_warning = kFaultWarning,
          .stall_shutdown = kFaultShutdown,
          .hosts = program.HostNames()};
}

}  // namespace

FaultRank::FaultRank(const FaultProgram& program, int rank, FaultNetwork* network,
                     FaultInvariants* invariants, bool repeats, bool forgets)
    : program_(program),
      calls_(program.calls[static_cast<size_t>(rank)]),
      rank_(rank),
      network_(network),
      invariants_(invariants),
      repeats_(repeats),
      forgets_(forgets),
      topology_(TopologyOf(program, rank)),
      coordinator_(OptionsOf(program, rank), &network->plane(rank), &network->board(rank)),
      guard_({kFaultWarning, kFaultShutdown, {}}, &topology_, &coordinator_),
      ids_(program.sets.size(), -1) {
  ids_[0] = kGlobalProcessSet;
}

int FaultRank::TensorNamed(const std::string& name) const {
  for (size_t tensor = 0; tensor < program_.tensors.size(); ++tensor) {
    if (program_.tensors[tensor].name == name) return static_cast<int>(tensor);
  }
  invariants_->Fail("rank " + std::to_string(rank_) + " is told of an unknown '" + name + "'");
  return 0;
}

bool FaultRank::Turn(bool may_depart) {
  if (std::exchange(asleep_until_, kPast) != kPast) invariants_->Woke(network_->now());
  const bool has_acted = network_->random()() % 4 != 0 && Act(may_depart);
  bool has_more = has_acted;
  if (const Status status = Cycle(&has_more); !status.ok() && !network_->HasCrashed(rank_)) {
    // Else its program has ended, and what it has to say has been said.
    if (!has_left_ || status.code() == StatusCode::kInternal) errors_.push_back(status);
    Stop(status);
  }
  if (network_->HasCrashed(rank_) || has_stopped_) return false;
  return has_more || Act(may_depart);
}

// As Engine::RunSteps.
Status FaultRank::Cycle(bool* has_more) {
  const TimePoint now = network_->now();
  const bool was_due = coordinator_.NextDeadline() <= now;
  const int64_t taken = coordinator_.messages_received();
  MYDIST_RETURN_IF_ERROR(coordinator_.Exchange(now));
  const bool waits = waits_for_all_ || next_ == calls_.size() || is_in_call();
  coordinator_.SetWaiting(waits && (!since_.empty() || is_in_call()), now);
  const bool has_news = coordinator_.messages_received() > taken;
  *has_more = *has_more || was_due || has_news;
  if (coordinator_.NextDeadline() > now) {
    MYDIST_RETURN_IF_ERROR(FollowStall());
  } else {
    MYDIST_ASSIGN_OR_RETURN(const std::vector<Response> batch, coordinator_.Negotiate(now));
    if (network_->HasCrashed(rank_)) return Status::Ok();
    if (!batch.empty() && forgets_) {
      forgets_ = false;
    } else {
      Take(batch);
    }
    if (!batch.empty() && repeats_) Take(batch);
    if (!batch.empty()) repeats_ = false;
    *has_more = *has_more || !batch.empty();
    if (batch.empty()) MYDIST_RETURN_IF_ERROR(FollowStall());
  }
  if (has_finished_ || !overdue_.ok()) Stop(Status::Ok());
  return Status::Ok();
}

// As Engine::FollowStall.
Status FaultRank::FollowStall() {
  const TimePoint now = network_->now();
  if (guard_.is_leaving()) {
    if (!has_finished_) overdue_ = guard_.FollowLeave(now);
    return Status::Ok();
  }
  const bool is_alone = since_.empty() && is_in_call();
  const char* const call = !is_alone ? "" : is_joining_ ? "join" : "start_timeline";
  MYDIST_RETURN_IF_ERROR(guard_.FollowCall(now, call, called_at_));
  if (now < guard_.NextFollow()) return Status::Ok();
  std::optional<StallGuard::InFlight> oldest;
  for (const auto& [tensor, since] : since_) {
    if (!oldest || since < oldest->since) oldest = {&requests_.at(tensor), since};
  }
  return guard_.Follow(now, oldest);
}

// As Engine::NextDeadline.
TimePoint FaultRank::NextDeadline() {
  if (asleep_until_ != kPast) return asleep_until_;
  const TimePoint next_look = guard_.is_leaving() ? guard_.NextLeave()
                              : since_.empty()    ? guard_.NextFollowCall()
                                                  : guard_.NextFollow();
  return std::min(coordinator_.NextDeadline(), next_look);
}

void FaultRank::Sleep(Duration duration) {
  const TimePoint end = duration == Duration::max() ? kNever : network_->now() + duration;
  asleep_until_ = std::max(asleep_until_, end);
  awake_since_ = asleep_until_;
}

void FaultRank::Fail(const Status& status) {
  errors_.push_back(status);
  checked_errors_ = errors_.size();
  Stop(status);
}

// As Engine::Stop.
void FaultRank::Stop(const Status& status) {
  if (has_stopped_) return;
  Trace("stops: " + status.ToString() + (overdue_.ok() ? "" : ", " + overdue_.ToString()));
  if (!status.ok()) {
    [[maybe_unused]] const bool told = !status.is_loss() &&
                                       coordinator_.Depart(FarewellWords(status)).ok() &&
                                       coordinator_.Negotiate(network_->now()).ok();
  }
  const Status& why = status.ok() ? overdue_ : status;
  coordinator_.Leave(why);
  has_stopped_ = true;
  if (!network_->HasCrashed(rank_)) network_->Close(rank_, FarewellWords(why));
}

void FaultRank::LeaveEarly(const std::string& why) {
  has_left_early_ = true;
  Leave(why);
}

void FaultRank::Leave(const std::string& why) {
  if (has_left_ || has_stopped_) return;
  Trace("leaves: " + why);
  has_left_ = true;
  guard_.BeginLeave(network_->now(), kFaultDrain, why == "shutdown");
  if (const Status left = coordinator_.Depart(why); !left.ok()) invariants_->Fail(left.ToString());
}

bool FaultRank::Act(bool may_depart) {
  if (has_left_) return false;
  if (somebody_left_) {
    if (!errors_.empty()) invariants_->Follow(rank_);
    Leave("an exception ended its program");
    return true;
  }
  if (is_in_call() || (waits_for_all_ && !since_.empty())) return false;
  waits_for_all_ = false;
  if (next_ == calls_.size()) {
    if (!since_.empty() || !may_depart) return false;
    if (!errors_.empty()) invariants_->Follow(rank_);
    Leave(errors_.empty() ? "shutdown" : "an exception ended its program");
    return true;
  }
  const FaultCall& call = calls_[next_];
  switch (call.kind) {
    case FaultCallKind::kTensor:
      return Submit(call);
    case FaultCallKind::kTimeline:
      ++next_;
      is_switching_ = true;
      called_at_ = network_->now();
      coordinator_.RequestTimeline({.start = next_ % 2 == 0});
      return true;
    case FaultCallKind::kJoin:
      if (!since_.empty()) return false;
      ++next_;
      is_joining_ = true;
      called_at_ = network_->now();
      invariants_->Joined(rank_);
      if (const Status joined = coordinator_.Join(); !joined.ok()) {
        invariants_->Fail("rank " + std::to_string(rank_) + ": " + joined.ToString());
      }
      return true;
  }
  return false;
}

bool FaultRank::Submit(const FaultCall& call) {
  const FaultTensor& tensor = program_.tensors[static_cast<size_t>(call.tensor)];
  const int last = call.tensor + (tensor.is_grouped ? 1 : 0);
  std::vector<Request> requests;
  for (int i = call.tensor; i <= last; ++i) {
    if (since_.contains(i)) return false;
    requests.push_back(program_.At(i, call.turn, rank_));
    requests.back().process_set = ids_[static_cast<size_t>(tensor.set)];
  }
  ++next_;
  // The call that adds its set has failed on all ranks.
  if (requests.front().process_set < 0) return true;
  const TimePoint now = network_->now();
  for (int i = call.tensor; i <= last; ++i) {
    since_[i] = now;
    requests_[i] = requests[static_cast<size_t>(i - call.tensor)];
  }
  waits_for_all_ = call.waits;
  Trace("submits " + tensor.name + " of turn " + std::to_string(call.turn));
  submitted_count_ += std::ssize(requests);
  guard_.Expect(now);
  const Status status = coordinator_.Announce(std::move(requests), now);
  for (int i = call.tensor; i <= last; ++i) {
    if (status.ok()) invariants_->Submitted(rank_, i, call.turn, now);
    if (!status.ok()) since_.erase(i);
  }
  if (status.ok()) return true;
  // The others have given up waiting for it.
  if (status.code() != StatusCode::kTimeout) invariants_->Fail("refused: " + status.ToString());
  errors_.push_back(status);
  return true;
}

void FaultRank::Take(const std::vector<Response>& batch) {
  std::map<int, int> places;
  for (const Response& response : batch) {
    if (trace) Trace("is told: " + ResponseText(response));
    TakeOne(response, places);
  }
}

void FaultRank::TakeOne(const Response& response, std::map<int, int>& places) {
  switch (response.kind) {
    case ResponseKind::kReady:
      return TakeReady(response, places);
    case ResponseKind::kError: {
      const int tensor = TensorNamed(response.name);
      since_.erase(tensor);
      if (response.status.code() != StatusCode::kMismatch) {
        errors_.push_back(guard_.Refine(response.status, network_->now()));
      }
      return invariants_->Failed(rank_, tensor, response.status);
    }
    case ResponseKind::kDeparted:
      return TakeDeparture(response);
    case ResponseKind::kFinished:
      has_finished_ = true;
      return;
    case ResponseKind::kAllJoined:
      is_joining_ = false;
      invariants_->Returned(rank_);
      return invariants_->Told(rank_, "all joined");
    case ResponseKind::kTimelineStart:
    case ResponseKind::kTimelineStop:
      is_switching_ = false;
      return invariants_->Told(rank_, ResponseText(response));
    case ResponseKind::kStall:
      return;
  }
}

void FaultRank::TakeReady(const Response& response, std::map<int, int>& places) {
  const Agreement& agreement = *response.agreement;
  const int tensor = TensorNamed(agreement.request.name);
  const FaultTensor& of = program_.tensors[static_cast<size_t>(tensor)];
  if (response.process_set != ids_[static_cast<size_t>(of.set)]) {
    invariants_->Fail(of.name + " is ready in another process set");
  }
  const int log = of.ranks.empty() ? of.set : -1 - tensor;
  invariants_->Ready(rank_, tensor, agreement, places[log]++);
  since_.erase(tensor);
  if (of.op != OpKind::kAddProcessSet) return;
  ids_[static_cast<size_t>(tensor - program_.step_tensors + 1)] = response.added_set;
}

void FaultRank::TakeDeparture(const Response& response) {
  invariants_->Told(rank_, "rank " + std::to_string(response.rank) + " departed");
  invariants_->Departed(rank_);
  const bool is_first = !std::exchange(somebody_left_, true);
  if (is_first && !has_left_ && !IsComplete()) errors_.push_back(response.status);
  since_.clear();
  is_joining_ = is_switching_ = false;
}

TimePoint FaultRank::WaitsSince() const {
  if (has_left_) return kNever;
  TimePoint since = is_in_call() ? called_at_ : kNever;
  for (const auto& [tensor, begin] : since_) since = std::min(since, begin);
  return since == kNever ? kNever : std::max(since, awake_since_);
}

void FaultRank::CheckErrors() {
  for (; checked_errors_ < errors_.size(); ++checked_errors_) {
    const Status& error = errors_[checked_errors_];
    if (error.code() == StatusCode::kInternal) {
      invariants_->Fail("rank " + std::to_string(rank_) + ": " + error.ToString());
    }
    if (!invariants_->IsCulprit(rank_)) invariants_->CheckBlame(rank_, error, network_->now());
  }
}

std::string FaultRank::Text() const {
  std::string text = has_stopped_ ? "has stopped" : has_left_ ? "leaves" : "runs";
  if (asleep_until_ > network_->now()) text += ", is silent";
  text += ", call " + std::to_string(next_) + " of " + std::to_string(calls_.size());
  for (const auto& [tensor, since] : since_) {
    text += ", " + program_.tensors[static_cast<size_t>(tensor)].name + " for " +
            std::to_string(ToSeconds(network_->now() - since)) + " s";
  }
  if (is_joining_) text += ", joins";
  if (is_switching_) text += ", switches the timeline";
  for (const Status& error : errors_) text += "\n    " + error.ToString();
  return text;
}

}  // namespace mydist
