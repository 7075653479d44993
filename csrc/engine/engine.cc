// The six steps of a cycle; who runs it, and what is recorded of it, is in engine_drive.cc, what
// callers do in engine_calls.cc.
#include "engine/engine.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/thread.h"
#include "controller/fusion_planner.h"
#include "world/departure.h"

namespace mydist {
namespace {

CoordinatorOptions OptionsOf(const Config& config, const Topology& topology) {
  return {.rank = topology.rank,
          .size = topology.size,
          .radix = static_cast<int>(config.coordinator_radix),
          .freeze_after = config.freeze_after,
          .cache_capacity = config.cache_capacity,
          .stall_warning = config.stall_warning,
          .stall_shutdown = config.stall_shutdown,
          .hosts = topology.hosts,
          .pids = topology.pids};
}

TensorKeyView KeyOf(const Agreement& agreement) {
  return {agreement.request.process_set, agreement.request.name};
}

std::string UpperCase(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return upper;
}

// Puts the meter around the transport, where there is one.
HostMeter* Metered(std::unique_ptr<Transport>& transport, const std::vector<std::string>& hosts) {
  if (transport == nullptr) return nullptr;
  auto meter = std::make_unique<HostMeter>(std::move(transport), hosts);
  HostMeter* const metered = meter.get();
  transport = std::move(meter);
  return metered;
}

}  // namespace

Result<std::shared_ptr<Engine>> Engine::Start(EngineOptions options) {
  const bool measures_costs = options.measures_costs;
  std::shared_ptr<Engine> engine(new Engine(std::move(options)));
  if (const Status measured = measures_costs ? engine->MeasureCosts() : Status::Ok();
      !measured.ok()) {
    engine->LeaveAtStart(measured);
    return measured.WithContext("measurements of init()");
  }
  // The thread keeps the engine alive, should it ever have to be left behind.
  MYDIST_ASSIGN_OR_RETURN(
      engine->thread_, StartThread("mydist-engine", "for the engine", [engine] { engine->Run(); }));
  return engine;
}

Engine::Engine(EngineOptions options)
    : config_(std::move(options.config)),
      topology_(std::move(options.topology)),
      connection_(std::move(options.connection)),
      shm_(std::move(options.shm)),
      progress_(topology_.rank, topology_.size, shm_.get()),
      handles_(std::move(options.handles)),
      term_(handles_->Reset()),
      recorder_(std::move(options.recorder)),
      dumper_(std::move(options.dumper)),
      process_sets_(topology_),
      votes_(ChooseVoteBoard(config_, topology_,
                             {.shm = shm_.get(),
                              .shares_everywhere = options.shares_everywhere,
                              .control = connection_.control.get()})),
      coordinator_(OptionsOf(config_, topology_), connection_.control.get(), votes_.get()),
      guard_({config_.stall_warning, config_.stall_shutdown, config_.connect_timeout}, &topology_,
             &coordinator_, std::move(options.rank_ends)),
      meter_(Metered(connection_.transport, topology_.hosts)),
      choice_(&config_, &topology_, shm_.get()),
      device_choice_({.config = &config_,
                      .topology = &topology_,
                      .on_host = &choice_,
                      .plugin = options.devices,
                      .nccl_folders = std::move(options.nccl_folders)}),
      executor_(
          topology_, meter_,
          {.fusion_memory =
               [this](int64_t bytes) { return AllocateShared(bytes, InForkedChild::kNothing); },
           .on_host = &choice_,
           .on_devices = &device_choice_,
           .sets = &process_sets_,
           .news = [this] { return guard_.LookInCollective(); },
           .check_peer = [this](int rank) { return connection_.control->CheckPeer(rank); }}),
      relay_(&topology_, &timeline_, &coordinator_),
      policy_(options.wait_policy),
      seat_(&coordinator_, policy_.linger) {
  guard_.SetOnWarning([this](const std::string& text) { Dump(FlightOccasion::kStall, text); });
  if (config_.stall_stack) coordinator_.SetOnAwaited([this] { PrintStacks(); });
  if (shm_ != nullptr) shm_->SetWatchdog(&guard_);
  coordinator_.SetOnProgress(
      [this](std::span<const RankProgress> told) { progress_.Hear(told, Now()); });
  guard_.TellProgressBy([this] { return progress_.All(Now()); });
  if (connection_.transport != nullptr) connection_.transport->SetWatchdog(&guard_);
  if (!options.wants_timeline) return;
  relay_.Start(config_.timeline_mark_cycles);
  if (topology_.rank != 0 || relay_.Open(config_.timeline_path)) return;
  // The other ranks have begun to record as well, and no rank would read it.
  coordinator_.RequestTimeline({.start = false});
}

Status Engine::MeasureCosts() {
  constexpr int64_t kSmallBytes = 8;
  // A full heap is no reason not to start: gradients will then lie elsewhere, too.
  const auto memory = TakeFromHeap(kProbeBytes, InForkedChild::kNothing);
  const ProbedPath path{.small = executor_.ReducerOf(kSmallBytes),
                        .large = executor_.ReducerOf(kProbeBytes),
                        .memory = memory.ok() ? reinterpret_cast<float*>(memory->get()) : nullptr,
                        .transport = meter_};
  if (path.small == nullptr || path.large == nullptr) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(costs_, MeasurePath(path));
  if (meter_ != nullptr) meter_->Reset();
  return Status::Ok();
}

Engine::~Engine() { MYDIST_CHECK(!thread_.joinable()); }

TimePoint Engine::NextDeadline() {
  const TimePoint linger_end = lingers_ ? drive_end_ + policy_.linger : kNever;
  const TimePoint next_look = guard_.is_leaving() ? guard_.NextLeave()
                              : pending_.empty()  ? guard_.NextFollowCall()
                                                  : guard_.NextFollow();
  return std::min({coordinator_.NextDeadline(), relay_.NextFlush(), next_look, linger_end,
                   executor_.NextCheck()});
}

void Engine::Drain(TimePoint now) {
  unhurried_bytes_.store(0);  // Before the queue: what comes in between is counted again.
  for (Mail& mail : queue_.Drain()) {
    ++drained_count_;
    std::visit([&](auto& what) { Obey(std::move(what), now); }, mail);
  }
}

void Engine::Obey(Tensors tensors, TimePoint now) {
  std::vector<Request> requests;
  requests.reserve(tensors.submissions.size());
  for (Submission& submission : tensors.submissions) {
    const Request& request = requests.emplace_back(submission.request);
    if (timeline_.enabled()) {
      timeline_.Record(EventPhase::kEnd, request.name, event_name::kEnqueue);
      timeline_.Record(EventPhase::kBegin, request.name, event_name::kNegotiate);
    }
    pending_.Add({std::move(submission), tensors.handle, now});
  }
  guard_.Expect(now);
  PassFailpoint(FailPlace::kNegotiate);
  const Status announced = coordinator_.Announce(std::move(requests), now);
  if (announced.ok()) return;
  for (const TensorKey& key : pending_.KeysOf(tensors.handle)) CompleteTensor(key, announced);
}

void Engine::Obey(Depart command, TimePoint now) {
  const bool hurries = guard_.is_leaving();
  if (!hurries) PassFailpoint(FailPlace::kShutdown);
  if (!hurries && command.awaits_living) WarnOfUnawaited();
  guard_.BeginLeave(now, hurries ? Duration::zero() : Duration(config_.shutdown_drain),
                    command.awaits_living && !hurries);
  if (hurries) return;
  // Before the departure, so that rank 0 has every event when all have departed.
  relay_.Stop();
  relay_.Finish();
  const char* const why = command.awaits_living ? "shutdown" : "an exception ended its program";
  if (!command.awaits_living) {
    Dump(FlightOccasion::kFailure, left_text_.empty() ? why : why + (", after " + left_text_));
  }
  if (Status status = coordinator_.Depart(why); !status.ok()) {
    MYDIST_LOG(kWarning) << status.message();
  }
}

void Engine::Obey(JoinCommand command, TimePoint now) {
  if (const Status joined = coordinator_.Join(); !joined.ok()) {
    return handles_->Complete(command.handle, JoinCommand::key(), joined);
  }
  join_ = std::move(command);
  called_at_ = now;
}

void Engine::Obey(TimelineSwitch command, TimePoint now) {
  timeline_switches_.push_back(command.handle);
  switch_name_ = command.start ? "start_timeline" : "stop_timeline";
  called_at_ = now;
  // Without a file there is nothing to start; the log has said so.
  if (command.start && !relay_.Open(command.path)) {
    return CompleteTimelineSwitches(Status::Ok());
  }
  coordinator_.RequestTimeline({command.start, command.mark_cycles});
}

void Engine::CompleteTimelineSwitches(const Status& status) {
  for (const Handle handle : std::exchange(timeline_switches_, {})) {
    handles_->Complete(handle, TimelineSwitch::key(), status);
  }
}

Status Engine::Exchange(TimePoint now) {
  const Status received = coordinator_.Exchange(now);
  const Status status = received.ok() ? guard_.TakeFindings() : received;
  coordinator_.SetWaiting(waiting_callers_.load() > 0 || patient_callers_->load() > 0, now);
  relay_.Flush(now);
  return status.ok() ? executor_.CheckDevices(now) : status;
}

Result<std::vector<Response>> Engine::Negotiate(TimePoint now) {
  if (timeline_.mark_cycles()) {
    timeline_.Record(EventPhase::kInstant, kCycleLane, event_name::kCycle);
  }
  MYDIST_ASSIGN_OR_RETURN(std::vector<Response> responses, coordinator_.Negotiate(now));
  relay_.Flush(now);  // What the coordinator has just read of other ranks.
  negotiated_count_ += static_cast<int64_t>(responses.size());
  for (const Response& response : responses) {
    if (response.kind != ResponseKind::kReady || !timeline_.enabled()) continue;
    const std::string& name = response.agreement->request.name;
    timeline_.Record(EventPhase::kEnd, name, event_name::kNegotiate);
    timeline_.Record(EventPhase::kBegin, name, event_name::kFuse);
  }
  return responses;
}

std::vector<Engine::Group> Engine::Plan(const std::vector<Response>& responses) const {
  std::vector<std::shared_ptr<const Agreement>> ready;
  for (const Response& response : responses) {
    if (response.kind != ResponseKind::kReady) continue;
    if (!ChangesProcessSets(response.agreement->request.op)) ready.push_back(response.agreement);
  }
  std::vector<Group> groups;
  if (ready.size() == 1) {  // Most steps of a caller that waits for each tensor.
    groups.push_back(std::move(ready));
    return groups;
  }
  for (const std::vector<size_t>& indices : PlanFusion(ready, config_.fusion_threshold_bytes)) {
    Group& group = groups.emplace_back();
    for (const size_t index : indices) group.push_back(ready[index]);
  }
  return groups;
}

Status Engine::Execute(const Group& group) {
  PassFailpoint(FailPlace::kFuse);
  std::vector<AgreedTensor> tensors;
  tensors.reserve(group.size());
  for (const auto& agreement : group) {
    PendingTensor* pending = Contribution(*agreement);
    tensors.push_back({agreement.get(), pending});
    counted_.tensor_bytes += pending->submission.request.shape.ElementCount().value_or(0) *
                             SizeOf(agreement->request.dtype);
  }
  const std::string op_name =
      timeline_.enabled() ? UpperCase(OpKindName(group.front()->request.op)) : "";
  RecordForGroup(group, EventPhase::kEnd, event_name::kFuse);
  RecordForGroup(group, EventPhase::kBegin, op_name);
  std::string activity;
  guard_.SetCollective(&group.front()->request, group.size());
  TimePoint last = kPast;
  int64_t run = 0;
  for (const AgreedTensor& tensor : tensors) {
    const TimePoint since = tensor.pending->since;
    if (since != kNever) last = std::max(last, since);  // Else this rank has joined.
    const Request& request = tensor.agreement->request;
    const bool is_of_all = request.op != OpKind::kSendReceive;
    run = is_of_all ? recorder_->NextRun(request.process_set) : 0;
    recorder_->Begun(tensor.pending->submission.record, run, guard_.collective_begin());
  }
  if (last != kPast) {
    using Microseconds = std::chrono::microseconds;
    const Duration waited = guard_.collective_begin() - last;
    counted_.wait_us += std::chrono::duration_cast<Microseconds>(waited).count();
  }
  struct End {
    StallGuard& guard;
    ~End() { guard.SetCollective(nullptr, 0); }
  };
  const int64_t overflows = OverflowsOfThread();
  const Status status = [&] {
    const End end{guard_};
    return executor_.Execute(tensors, ActivitiesOf(group, &activity));
  }();
  if (OverflowsOfThread() != overflows) NoteOverflow(group);
  if (!activity.empty()) RecordForGroup(group, EventPhase::kEnd, activity);
  RecordForGroup(group, EventPhase::kEnd, op_name);
  ++counted_.batches;
  counted_.tensors += static_cast<int64_t>(group.size());
  const auto named = [this](const Status& outcome, const Request& request) {
    if (outcome.ok()) return outcome;  // No texts for what goes well.
    const PendingTensor* const pending = pending_.Find({request.process_set, request.name});
    return outcome.WithContext(CallText(request)).About(FailureOf(request, "reduce", pending));
  };
  PublishStats();  // Before a caller learns that it is complete.
  if (status.ok()) progress_.NoteDone(group.back()->request, run, counted_.wait_us);
  if (status.ok()) PassFailpoint(FailPlace::kCallback);
  const Status located = guard_.Locate(status);
  for (const auto& agreement : group) {
    CompleteTensor(KeyOf(*agreement), named(located, agreement->request), guard_.collective_end());
  }
  return named(status, group.front()->request);
}

void Engine::Complete(const std::vector<Response>& responses) {
  for (const Response& response : responses) HandleNotice(response);
}

void Engine::HandleNotice(const Response& response) {
  switch (response.kind) {
    case ResponseKind::kReady:  // Executed and completed already, if it moved data.
      if (ChangesProcessSets(response.agreement->request.op)) ChangeProcessSets(response);
      return;
    case ResponseKind::kError: {
      const Status refined = guard_.Locate(guard_.Refine(response.status, Now()));
      guard_.NoteSilent(refined);
      return FailTensor({response.process_set, response.name}, refined);
    }
    case ResponseKind::kStall: {
      const Status refined = guard_.Refine(response.status, Now());
      if (guard_.NoteTold(response.name, refined)) NoteStall(refined.message());
      return;
    }
    case ResponseKind::kDeparted:
      return HandleDeparture(response);
    case ResponseKind::kFinished:
      finished_ = true;
      return;
    case ResponseKind::kAllJoined:
      return HandleAllJoined(response);
    case ResponseKind::kTimelineStart:
      relay_.Start(response.flag);
      return CompleteTimelineSwitches(Status::Ok());
    case ResponseKind::kTimelineStop:
      relay_.Stop();
      relay_.AwaitFile();
      return CompleteTimelineSwitches(Status::Ok());
  }
}

void Engine::FailTensor(TensorKeyView key, const Status& why) {
  if (const PendingTensor* const pending = pending_.Find(key); pending != nullptr) {
    const Failure known = FailureOf(pending->submission.request, "negotiate", pending);
    return CompleteTensor(key, why.About(known));
  }
  CompleteTensor(key, why);
}

void Engine::NoteStall(const std::string& warning) {
  MYDIST_LOG(kWarning) << warning;
  Dump(FlightOccasion::kStall, warning);
}

void Engine::HandleAllJoined(const Response& response) {
  if (!join_) return;  // A departure has ended it.
  const JoinCommand join = *std::exchange(join_, std::nullopt);
  if (join.on_numbers) join.on_numbers({response.rank});
  recorder_->Ended(join.record, StatusCode::kOk, Now());
  handles_->Complete(join.handle, JoinCommand::key(), Status::Ok());
}

void Engine::ChangeProcessSets(const Response& response) {
  const Request& request = response.agreement->request;
  const TensorKeyView key{request.process_set, request.name};
  PendingTensor* pending = pending_.Find(key);
  if (request.op == OpKind::kAddProcessSet) {
    ProcessSet set{response.added_set, {request.ranks.begin(), request.ranks.end()}};
    executor_.AddProcessSet(set);
    recorder_->NoteProcessSet(set);
    process_sets_.Add(std::move(set));
    if (pending != nullptr && pending->submission.on_numbers) {
      pending->submission.on_numbers({response.added_set});
    }
  } else {
    executor_.RemoveProcessSet(request.process_set);
    process_sets_.Remove(request.process_set);
  }
  // A rank outside a removed set has no handle for the removal.
  if (pending != nullptr) CompleteTensor(key, Status::Ok());
}

PendingTensor* Engine::Contribution(const Agreement& agreement) {
  const TensorKeyView key = KeyOf(agreement);
  if (PendingTensor* pending = pending_.Find(key)) return pending;
  // Ready means that we, too, announced it, unless we have joined.
  MYDIST_CHECK(join_.has_value());
  const Result<ProcessSet> set = process_sets_.Find(key.first);
  MYDIST_CHECK(set.ok());
  Submission neutral = NeutralSubmission(agreement, *set);
  neutral.record = recorder_->Submitted(agreement.request, Now());
  pending_.Add({std::move(neutral), 0, kNever});
  return pending_.Find(key);
}

void Engine::CompleteTensor(TensorKeyView key, const Status& status, TimePoint now) {
  // The tensor's memory is let go before its owner learns that it may.
  const auto [handle, record] = pending_.Remove(key);
  recorder_->Ended(record, status.code(), now);
  if (timeline_.enabled()) {
    timeline_.Record(EventPhase::kInstant, key.second, event_name::kComplete,
                     status.ok() ? "" : status.message());
  }
  handles_->Complete(handle, key, status);
}

void Engine::LogFailure(const Status& status) const {
  if (guard_.is_leaving() && status.is_loss()) {
    MYDIST_LOG(kInfo) << "shutdown: a peer had already disconnected: " << status.message();
  } else {
    MYDIST_LOG(kError) << "the engine has stopped: " << status.ToString();
    Dump(FlightOccasion::kFailure, status.message());
  }
}

void Engine::Stop(const Status& status) {
  if (!status.ok()) {
    // Rank 0 collects events for a second, and to end GPUs may take longer. Waits for no disk.
    relay_.CarryOff();
    // Tells the ranks that wait for this one, as far as the connections still carry it. They notice
    // a lost peer themselves, or read of it in this rank's farewell.
    [[maybe_unused]] const bool told = !status.is_loss() &&
                                       coordinator_.Depart(FarewellWords(status)).ok() &&
                                       coordinator_.Negotiate(Now()).ok();
  }
  if (!overdue_.ok()) MYDIST_LOG(kWarning) << "shutdown: " << overdue_.message();
  // Ranks of other hosts may learn from this one which signal has ended a rank of its host.
  const Status explained = guard_.LocateForOthers(status);
  // Peers in a collective that this rank will not come to need not wait for a time-out.
  const Status& why = status.ok() ? overdue_ : explained;
  coordinator_.Leave(why, progress_.ForFarewell(why.failure().ranks, Now()));
  const std::string farewell = FarewellWords(why);
  if (shm_ != nullptr) shm_->Leave(farewell);
  // It may wait a moment, so the peers are told before.
  const Status reason = status.ok()
                            ? Status::Aborted("mydist has been shut down; call mydist.init() first")
                            : guard_.Locate(explained);
  // A failure, or an early end, leaves work on GPUs that waits for other ranks.
  const bool all_are_leaving = status.ok() && overdue_.ok();
  executor_.EndDevices(all_are_leaving ? Status::Ok() : reason,
                       Now() + Duration(config_.shutdown_drain));
  FailPending(reason);
  handles_->Fail(term_, reason);
  // Not before: no caller waits for a log or a disk to learn of a failure.
  if (!status.ok()) {
    LogFailure(reason);
    relay_.Stop();
    relay_.Finish();
  }
  CollectTimeline();
  // Dropped with what is pending: their handles have just failed.
  [[maybe_unused]] const std::vector<Mail> undrained = queue_.Close();
  pending_.Clear();
  if (connection_.control != nullptr) {
    connection_.control->SetFarewell(farewell);
    // A peer that is only slow, on a loaded host or with a large timeline to write, still gets its
    // orderly end; one that is gone or never came is not waited for again.
    const Duration patience = all_are_leaving ? Duration(config_.shutdown_drain) : kExitGrace;
    if (Status closed = connection_.control->Close(Now() + patience); !closed.ok()) {
      MYDIST_LOG(kDebug) << "closing: " << closed.message();
    }
  }
  closes_timeline_.store(true);
  relay_.Close();
  PublishStats();
}

void Engine::PublishStats() {
  static_cast<CoordinatorStats&>(counted_) = coordinator_.stats();
  if (meter_ != nullptr) {
    counted_.inter_host_messages_sent = meter_->sent_count();
    counted_.inter_host_bytes_sent = meter_->sent_bytes();
  }
  counted_.pack_bytes = executor_.pack_bytes();
  counted_.most_staged_chunks = executor_.most_staged_chunks();
  MutexLock lock(stats_mutex_);
  stats_ = counted_;
}

}  // namespace mydist
