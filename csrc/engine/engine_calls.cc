// What callers do to the Engine, from any thread: submitting, switching the timeline, shutting
// down; and how what is in flight fails.

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "engine/engine.h"
#include "kernels/simd/simd_path.h"
#include "world/departure.h"
#include "world/process_set.h"

namespace mydist {

namespace {

// Gradients are negotiated during backward once this many bytes are queued.
constexpr int64_t kBucketBytes = int64_t{1} << 20;

}  // namespace

Status Engine::Post(Mail mail, int64_t unhurried_bytes) {
  const Pushed pushed =
      unhurried_bytes == 0 ? queue_.Push(std::move(mail)) : queue_.PushUnhurried(std::move(mail));
  if (pushed == Pushed::kClosed) return Status::Aborted("mydist has been shut down");
  if (pushed == Pushed::kFirst) {
    unhurried_bytes_.store(0);  // The engine takes that along.
    seat_.Wake();
  }
  if (unhurried_bytes == 0) return Status::Ok();
  const int64_t waiting_bytes = unhurried_bytes_.fetch_add(unhurried_bytes) + unhurried_bytes;
  if (waiting_bytes >= kBucketBytes) Hurry();
  return Status::Ok();
}

template <typename Command>
void Engine::PostCommand(Command command) {
  const Handle handle = command.handle;
  if (Status posted = Post(std::move(command), 0); !posted.ok()) {
    handles_->Complete(handle, Command::key(), posted);
  }
}

void Engine::Report(const PeerFinding& finding) {
  guard_.Report(finding);
  seat_.Wake();
}

void Engine::Hurry() {
  if (unhurried_bytes_.load() > 0 && unhurried_bytes_.exchange(0) > 0) seat_.Wake();
}

Status Engine::CheckUnused(ProcessSetId set) {
  const std::optional<std::string> name = handles_->NameInFlight(set);
  if (!name) return Status::Ok();
  return Status::InvalidArgument("process set " + std::to_string(set) +
                                 " cannot be removed while its tensor '" + *name +
                                 "' is in flight. Call synchronize() for it first.");
}

// A rank that was in no call when another one failed learns of it by its next call.
Status Engine::Refused(const Status& why, const Request& request) {
  if (why.failure().ranks.empty() || !why.failure().tensor.empty()) return why;
  return why.WithContext(CallText(request)).About(FailureOf(request, "negotiate", nullptr));
}

Result<Handle> Engine::Submit(std::vector<Submission> tensors, Pace pace) {
  std::vector<TensorKey> keys;
  keys.reserve(tensors.size());
  int32_t gpu = kCpuDevice;
  const Request* on_gpu = nullptr;
  for (const Submission& tensor : tensors) {
    MYDIST_RETURN_IF_ERROR(process_sets_.Admit(tensor.request, &gpu));
    if (tensor.request.device != kCpuDevice) on_gpu = &tensor.request;
    if (tensor.request.op == OpKind::kRemoveProcessSet) {
      MYDIST_RETURN_IF_ERROR(CheckUnused(tensor.request.process_set));
    }
    // What tells of a refusal is no tensor: it holds up neither its name nor its set.
    if (tensor.request.values == InputValues::kRefused) continue;
    keys.emplace_back(tensor.request.process_set, tensor.request.name);
  }
  if (on_gpu != nullptr) MYDIST_RETURN_IF_ERROR(process_sets_.Bind(*on_gpu));
  const Result<Handle> opened =
      handles_->Open(keys, tensors.empty() ? "" : OpKindName(tensors.front().request.op));
  const TimePoint now = Now();
  for (Submission& tensor : tensors) {
    tensor.record = recorder_->Submitted(tensor.request, now);
    if (!opened.ok()) recorder_->Ended(tensor.record, opened.status().code(), now);
  }
  if (!opened.ok() && !tensors.empty()) return Refused(opened.status(), tensors.front().request);
  MYDIST_ASSIGN_OR_RETURN(const Handle handle, opened);
  if (tensors.empty()) return handle;
  int64_t unhurried_bytes = 0;
  for (const Submission& tensor : tensors) {
    // An empty tensor counts as well, or the engine would not notice it. A tensor whose caller
    // waits for it need not wake the engine, however large it is.
    if (pace != Pace::kNow) ++unhurried_bytes;
    if (pace == Pace::kWithMore) {
      unhurried_bytes +=
          tensor.request.shape.ElementCount().value_or(0) * SizeOf(tensor.request.dtype);
    }
    if (timeline_.enabled()) {
      timeline_.Record(EventPhase::kInstant, tensor.request.name, "READY");
      timeline_.Record(EventPhase::kBegin, tensor.request.name, event_name::kEnqueue);
    }
  }
  if (Status posted = Post(Tensors{handle, std::move(tensors)}, unhurried_bytes); !posted.ok()) {
    // This engine fails its handles when it ends, but the handle may be of its successor's time.
    for (const TensorKey& key : keys) handles_->Complete(handle, key, posted);
  }
  return handle;
}

Status Engine::StartTimeline(const std::string& path, bool mark_cycles) {
  return SwitchTimeline({.start = true, .path = path, .mark_cycles = mark_cycles, .handle = 0});
}

Status Engine::StopTimeline() {
  return SwitchTimeline({.start = false, .path = "", .mark_cycles = false, .handle = 0});
}

Status Engine::SwitchTimeline(TimelineSwitch command) {
  if (topology_.rank != 0) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(const Handle handle, handles_->Open({TimelineSwitch::key()}));
  command.handle = handle;
  PostCommand(std::move(command));
  MYDIST_ASSIGN_OR_RETURN(const std::optional<Status> outcome, handles_->Wait(handle, kNever));
  return outcome.value_or(Status::Ok());
}

Result<Handle> Engine::Join(NumbersCallback on_numbers) {
  const Result<Handle> opened = handles_->Open({JoinCommand::key()});
  if (opened.status().code() == StatusCode::kInvalidArgument) {
    return Status::InvalidArgument(
        "join() is already in progress on this rank; wait for it to return");
  }
  MYDIST_ASSIGN_OR_RETURN(const Handle handle, opened);
  PostCommand(JoinCommand{handle, std::move(on_numbers), recorder_->Joined(Now())});
  return handle;
}

Result<std::shared_ptr<uint8_t>> Engine::TakeFromHeap(int64_t bytes, InForkedChild in_child) const {
  if (shm_ == nullptr) return std::shared_ptr<uint8_t>();
  if (shm_->heap() == nullptr) return shm_->arena().NoHeap(bytes);
  return shm_->heap()->Allocate(bytes, in_child);
}

std::shared_ptr<uint8_t> Engine::AllocateShared(int64_t bytes, InForkedChild in_child) const {
  const auto memory = TakeFromHeap(bytes, in_child);
  if (memory.ok()) return *memory;
  WarnOfPrivateMemory("some tensors use", memory.status());
  return nullptr;
}

void Engine::ForeseeShared(int64_t bytes) const {
  if (shm_ == nullptr || bytes == 0) return;
  const Status room =
      shm_->heap() == nullptr ? shm_->arena().NoHeap(bytes) : shm_->heap()->CheckRoom(bytes);
  if (!room.ok()) WarnOfPrivateMemory("some tensors may have to use", room);
}

void Engine::WarnOfPrivateMemory(const char* what, const Status& why) const {
  if (!shm_->arena().ClaimsWarning()) return;
  MYDIST_LOG(kWarning) << what << " private memory, which is slower to reduce than shared memory: "
                       << why.message();
}

bool Engine::AwaitExit(TimePoint deadline) {
  MutexLock lock(exit_mutex_);
  while (!has_exited_ && exited_.WaitUntil(exit_mutex_, deadline)) {
  }
  return has_exited_;
}

bool Engine::AwaitLeave(const std::function<bool()>& is_wanted) {
  const TimePoint begin = Now();
  const Duration silence = 2 * Duration(config_.shutdown_drain) + kTimelineGrace + kExitGrace;
  TimePoint next_line = begin + kDiskLine;
  for (bool hurries = false;;) {
    if (AwaitExit(Now() + kInterruptCheck)) return true;
    const TimePoint deadline = std::max(begin, left_alive_at_.load()) + silence;
    if (!hurries && is_wanted && !is_wanted()) {
      hurries = true;
      [[maybe_unused]] const bool posted = Post(Depart{.awaits_living = false}, 0).ok();
    }
    // What has been recorded is not given up to a slow disk while the caller waits.
    if (!closes_timeline_.load() || hurries || !is_wanted) {
      if (Now() >= deadline) return false;
    } else if (Now() >= next_line) {
      next_line += kDiskLine;
      MYDIST_LOG(kWarning) << "shutdown() waits until the timeline is written; its disk is slow. "
                              "Ctrl-C ends the wait.";
    }
  }
}

bool Engine::Shutdown(bool awaits_living, const std::function<bool()>& is_wanted) {
  if (!thread_.joinable()) return true;
  // Already closed: the thread has ended, or is about to, by itself.
  [[maybe_unused]] const bool posted = Post(Depart{.awaits_living = awaits_living}, 0).ok();
  bool has_exited = AwaitLeave(is_wanted);
  if (!has_exited && closes_timeline_.load()) {
    MYDIST_LOG(kWarning) << "shutdown() ends before the timeline is written; its file may lack the "
                            "last events";
    thread_.detach();
    return true;
  }
  if (!has_exited) {
    Dump(FlightOccasion::kFailure, "mydist was shut down while a collective was stuck");
    // It may be stuck in a call of the driver, behind work that waits for a peer.
    executor_.AbortDevices(Status::Aborted("mydist was shut down while a collective was stuck"));
    has_exited = AwaitExit(Now() + kExitGrace);
  }
  if (has_exited) {
    thread_.join();
    return true;
  }
  MYDIST_LOG(kError) << "the engine is stuck in a collective with a peer that does not answer; "
                        "shutdown ends without it";
  // The engine drains it no more: later submissions are refused.
  [[maybe_unused]] const std::vector<Mail> undrained = queue_.Close();
  handles_->Fail(term_, Status::Aborted("mydist was shut down while a collective was stuck"));
  thread_.detach();
  return false;
}

EngineStats Engine::stats() const {
  MutexLock lock(stats_mutex_);
  EngineStats stats = stats_;
  stats.wakeups = seat_.wakeups();
  stats.hand_overs = hand_overs_.load();
  stats.strategy_rounds = strategy_rounds_.load();
  return stats;
}

// The facts that mydist.explain() shows.

namespace {

// At most 63 characters.
std::string Decimal(const char* format, double value) {
  std::string text(64, '\0');
  const int length = std::snprintf(text.data(), text.size(), format, value);
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return text;
}

std::string Megabytes(int64_t bytes) {
  return Decimal("%.4g MiB", static_cast<double>(bytes) / (1 << 20));
}

Fact DataPath(const Config& config, const Topology& topology, const shm::ShmPort* shm) {
  if (topology.size == 1) return {"data path", "none", "the job has one rank"};
  if (topology.local_size > 1 && shm != nullptr)
    return {"data path", "shared memory inside this host", shm->Description()};
  const char* reason = "MYDIST_SHARED_MEMORY is 0";
  if (config.shared_memory) {
    reason = topology.local_size == 1 ? "this host has one rank"
                                      : "shared memory is unavailable; see the warning of init()";
  }
  return {"data path", "the backend, between all ranks", reason};
}

Fact Hierarchy(const Config& config, const HostGroups& hosts) {
  if (!hosts.HasTwoLevels()) return {"hierarchy", "all ranks at once", "each host has one rank"};
  if (config.algorithm == "hierarchical") {
    return {"hierarchy", "inside each host first, then between hosts",
            "MYDIST_ALGORITHM is hierarchical"};
  }
  const bool is_given = config.hierarchical_allreduce.has_value();
  const bool is_on = config.hierarchical_allreduce.value_or(config.shared_memory);
  return {"hierarchy", is_on ? "inside each host first, then between hosts" : "all ranks at once",
          is_given ? "MYDIST_HIERARCHICAL_ALLREDUCE is set" : "follows MYDIST_SHARED_MEMORY"};
}

Fact Waiting(const WaitPolicy& policy) {
  if (policy.patience == Duration::zero())
    return {"waiting", "yields the core at once", "this host has fewer cores than ranks"};
  return {"waiting", "spins briefly, then sleeps", "this host has a core for each rank"};
}

}  // namespace

std::vector<Fact> Engine::Explain() const {
  std::vector<Fact> facts = {DataPath(config_, topology_, shm_.get())};
  const HostGroups hosts =
      MakeHostGroups(topology_.hosts, GlobalProcessSet(topology_.size).ranks, topology_.rank);
  if (hosts.host_count() > 1) facts.push_back(Hierarchy(config_, hosts));
  if (config_.algorithm != "auto") {
    facts.push_back({"algorithm", config_.algorithm,
                     "MYDIST_ALGORITHM is set; other algorithms run where it cannot"});
  }
  if (topology_.size > 1) facts.push_back(Waiting(policy_));
  facts.push_back(
      {"kernels", std::string(simd::SimdPathName(simd::CurrentPath())),
       config_.simd == "auto" ? "the widest that this CPU supports" : "MYDIST_SIMD is set"});
  facts.push_back({"fusion", "up to " + Megabytes(config_.fusion_threshold_bytes),
                   "MYDIST_FUSION_THRESHOLD_MB or its default"});
  if (costs_.measured()) {
    const double latency_us = costs_.latency.count() * 1e6;
    const double assumed_us = static_cast<double>(kWakeUps.count());
    facts.push_back(
        {"latency", Decimal("%.2f us", latency_us),
         Decimal("%.2f us", latency_us - assumed_us) +
             " measured by init(): an allreduce of 8 bytes and the messages before it; " +
             Decimal("%.0f us", assumed_us) + " assumed for wake-ups"});
    facts.push_back({"throughput", Decimal("%.2f GB/s", 1e-9 / costs_.seconds_per_byte),
                     "allreduces of 1 MiB, measured by init()"});
  } else {
    facts.push_back(
        {"latency", "not measured",
         config_.bucket_size_bytes ? "MYDIST_BUCKET_SIZE_MB is set" : "the job has one rank"});
  }
  for (Fact& fact : executor_.DeviceFacts()) facts.push_back(std::move(fact));
  return facts;
}

// The other ranks need not wait for this one, and learn the cause.
void Engine::LeaveAtStart(const Status& why) {
  const std::string farewell = FarewellWords(why);
  if (shm_ != nullptr) shm_->Leave(farewell);
  if (connection_.control == nullptr) return;
  connection_.control->SetFarewell(farewell);
  if (Status closed = connection_.control->Close(Now() + kStartGrace); !closed.ok()) {
    MYDIST_LOG(kDebug) << "closing after a failed start: " << closed.message();
  }
}

Failure Engine::FailureOf(const Request& request, const char* phase, const PendingTensor* pending) {
  const bool is_in_flight = pending != nullptr && pending->since != kNever;
  return {.operation = std::string(OpKindName(request.op)),
          .tensor = request.name,
          .phase = phase,
          .elapsed = is_in_flight ? ToSeconds(Now() - pending->since) : 0};
}

// Each error says what it is about, and not also which collective failed first.
void Engine::FailPending(const Status& reason) {
  const Failure& failure = reason.failure();
  const Status bare = Status(reason.code(), WithoutCall(failure, reason.message())).About(failure);
  for (const TensorKey& key : pending_.Keys()) {
    const PendingTensor* const pending = pending_.Find(key);
    const Request& request = pending->submission.request;
    const bool is_named = failure.tensor == request.name;
    const Status named = is_named ? reason : bare.WithContext(CallText(request));
    CompleteTensor(key, named.About(FailureOf(request, "negotiate", pending)));
  }
  FailJoin(failure.operation == "join" ? reason : bare.WithContext("join"));
}

namespace {

// ", nor can 'a', 'b' and 3 more": the others among `keys`; empty: there are none.
std::string OthersText(const std::vector<TensorKey>& keys, const TensorKey& one) {
  constexpr size_t kMostNamed = 8;
  const size_t count = keys.size() - 1;
  std::string text;
  size_t named = 0;
  for (size_t i = 0; i < keys.size() && named < std::min(count, kMostNamed); ++i) {
    if (keys[i] == one) continue;
    const char* const joint = named == 0 ? ", nor can '" : named + 1 == count ? " and '" : ", '";
    text += joint + keys[i].second + "'";
    ++named;
  }
  return count > named ? text + " and " + std::to_string(count - named) + " more" : text;
}

}  // namespace

void Engine::HandleDeparture(const Response& response) {
  const Status left = guard_.Locate(response.status);
  const StatusCode code = left.code();
  // It may end in a sentence with advice.
  const size_t end = left.message().find_last_not_of('.') + 1;
  const std::string who = left.message().substr(0, end);
  const Failure& known = left.failure();
  left_text_ = left.message();
  if (HasInFlight() && !guard_.is_leaving()) Dump(FlightOccasion::kFailure, left_text_);
  const std::vector<TensorKey> keys = pending_.Keys();
  for (const TensorKey& key : keys) {
    const PendingTensor* const pending = pending_.Find(key);
    const Request& request = pending->submission.request;
    const std::string text =
        who + "; " + CallText(request) + " can no longer complete" + OthersText(keys, key);
    if (key == keys.front()) failed_text_ = text;
    failed_handles_.push_back(pending->handle);
    CompleteTensor(key,
                   Status(code, text).About(FailureOf(request, "negotiate", pending)).About(known));
  }
  if (guard_.is_leaving()) WarnOfUnawaited();
  FailJoin(Status(code, who + "; join can no longer complete").About(known));
  const char* const advice =
      "; no collective can complete any more. Call the same collectives on every rank before any "
      "rank shuts down or exits";
  handles_->Fail(term_, Status(code, who + advice).About(known));
  timeline_switches_.clear();  // Failed with the others.
}

// Perhaps no caller comes for the errors any more.
void Engine::WarnOfUnawaited() {
  const std::vector<Handle> handles = std::exchange(failed_handles_, {});
  const bool are_kept = std::all_of(handles.begin(), handles.end(), [this](Handle handle) {
    return handles_->Poll(handle).ok();  // Else its caller has learnt of it, and of the others.
  });
  if (handles.empty() || !are_kept) return;
  MYDIST_LOG(kWarning) << failed_text_ << ". Wait for all handles before you call shutdown().";
}

void Engine::FailJoin(const Status& why) {
  if (!join_) return;
  recorder_->Ended(join_->record, why.code(), Now());
  handles_->Complete(std::exchange(join_, std::nullopt)->handle, JoinCommand::key(),
                     why.About({.operation = "join", .phase = "negotiate"}));
}

}  // namespace mydist
