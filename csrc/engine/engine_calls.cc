// What callers do to the Engine, from any thread: submitting, switching the timeline, shutting
// down.
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "engine/engine.h"

namespace mydist {
namespace {

// What has to come together before gradients are negotiated while backward goes on.
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

Result<Handle> Engine::Submit(std::vector<Submission> tensors, Pace pace) {
  std::vector<TensorKey> keys;
  keys.reserve(tensors.size());
  for (const Submission& tensor : tensors) {
    MYDIST_RETURN_IF_ERROR(process_sets_.CheckMember(tensor.request.process_set));
    if (tensor.request.op == OpKind::kRemoveProcessSet) {
      MYDIST_RETURN_IF_ERROR(CheckUnused(tensor.request.process_set));
    }
    keys.emplace_back(tensor.request.process_set, tensor.request.name);
  }
  MYDIST_ASSIGN_OR_RETURN(const Handle handle, handles_->Open(keys));
  if (tensors.empty()) return handle;
  int64_t unhurried_bytes = 0;
  for (const Submission& tensor : tensors) {
    // An empty tensor counts as well, or nobody would know that it is there; one whose caller
    // comes to fetch it is no reason to wake the engine, however large.
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
        "join() has been called already and has not returned yet. Wait for that first.");
  }
  MYDIST_ASSIGN_OR_RETURN(const Handle handle, opened);
  PostCommand(JoinCommand{handle, std::move(on_numbers)});
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
  WarnOfPrivateMemory("some tensors lie", memory.status());
  return nullptr;
}

void Engine::ForeseeShared(int64_t bytes) const {
  if (shm_ == nullptr || bytes == 0) return;
  const Status room =
      shm_->heap() == nullptr ? shm_->arena().NoHeap(bytes) : shm_->heap()->CheckRoom(bytes);
  if (!room.ok()) WarnOfPrivateMemory("some tensors may have to lie", room);
}

void Engine::WarnOfPrivateMemory(const char* what, const Status& why) const {
  if (!shm_->arena().ClaimsWarning()) return;
  MYDIST_LOG(kWarning) << what << " in private memory, which takes longer to reduce; "
                       << why.message();
}

bool Engine::AwaitExit(TimePoint deadline) {
  MutexLock lock(exit_mutex_);
  while (!has_exited_ && exited_.WaitUntil(exit_mutex_, deadline)) {
  }
  return has_exited_;
}

bool Engine::Shutdown() {
  if (!thread_.joinable()) return true;
  // Already closed: the thread has ended, or is about to, by itself.
  [[maybe_unused]] const bool posted = Post(Depart{}, 0).ok();
  const TimePoint deadline = Now() + 2 * config_.shutdown_drain + kTimelineGrace + kExitGrace;
  bool has_exited = AwaitExit(deadline);
  if (!has_exited) {
    // It may be stuck in a call of the driver, behind work that waits for a peer.
    executor_.AbortDevices(Status::Aborted("mydist was shut down while a collective was stuck"));
    has_exited = AwaitExit(Now() + kExitGrace);
  }
  if (has_exited) {
    thread_.join();
    return true;
  }
  MYDIST_LOG(kError) << "the engine is stuck in a collective with a peer that does not answer; "
                        "leaving it behind";
  // Nobody drains it any more: what is submitted from here on is refused.
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
  return stats;
}

}  // namespace mydist
