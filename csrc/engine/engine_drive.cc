// Which thread runs the cycles: the engine's own, or a caller that waits. And what the Engine
// records of itself: events of the timeline, and dumps of the flight recorder.
#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/signal_block.h"
#include "engine/engine.h"
#include "memory/shm/arena.h"

namespace mydist {

void Engine::Run() {
  const DefaultFloatEnvironment environment;
  role_.Lock();
  while (!outcome_) {
    RunCycle();
    if (!outcome_) SleepUntilDue();
  }
  Finish();
  role_.Unlock();
  MutexLock lock(exit_mutex_);
  has_exited_ = true;
  exited_.NotifyAll();
}

void Engine::SleepUntilDue() {
  if (lingers_ && (HasInFlight() || Now() >= drive_end_ + policy_.linger)) {
    lingers_ = false;
    coordinator_.Attend(false);
  }
  const TimePoint due = NextDeadline();
  if (due <= Now()) return;
  sleeps_until_.store(due);
  role_.Unlock();
  seat_.Sleep(due);
  // A caller that drives sees to whatever this thread was woken for, most of the time.
  const TimePoint again = Now() + kYieldToCaller;
  sleeps_until_.store(again);
  if (!role_.TryLock()) {
    seat_.Sleep(again);
    role_.Lock();
  }
  sleeps_until_.store(TimePoint::min());
}

void Engine::RunCycle() {
  try {
    const Result<bool> goes_on = RunSteps();
    if (!goes_on.ok()) {
      outcome_ = goes_on.status();
    } else if (!*goes_on) {
      outcome_ = Status::Ok();
    }
  } catch (const std::exception& error) {
    outcome_ = Status::Internal(std::string("the engine failed: ") + error.what());
  }
}

Result<bool> Engine::RunSteps() {
  const TimePoint now = Now();
  Drain(now);
  MYDIST_RETURN_IF_ERROR(Exchange(now));
  // A caller that polls again and again finds nothing to do here most of the time.
  if (coordinator_.NextDeadline() > now) {
    MYDIST_RETURN_IF_ERROR(FollowStall(now));
    return !finished_;
  }
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Response> responses, Negotiate(now));
  const std::vector<Group> groups = Plan(responses);
  for (const Group& group : groups) MYDIST_RETURN_IF_ERROR(Execute(group));
  Complete(responses);
  if (groups.empty()) {
    PublishStats();  // Execute does so by itself.
    MYDIST_RETURN_IF_ERROR(FollowStall(now));
  }
  return !finished_;
}

Status Engine::FollowStall(TimePoint now) {
  if (guard_.is_leaving()) {
    left_alive_at_.store(now);
    if (!finished_) overdue_ = guard_.FollowLeave(now);
    finished_ = finished_ || !overdue_.ok();
    return Status::Ok();
  }
  const bool is_in_call = pending_.empty() && (join_ || !timeline_switches_.empty());
  const char* const call = !is_in_call ? "" : join_ ? "join" : switch_name_;
  MYDIST_RETURN_IF_ERROR(guard_.FollowCall(now, call, called_at_));
  if (now < guard_.NextFollow()) return Status::Ok();
  std::optional<StallGuard::InFlight> oldest;
  pending_.ForEach([&](const PendingTensor& tensor) {
    if (oldest && oldest->since <= tensor.since) return;
    oldest = {&tensor.submission.request, tensor.since};
  });
  // What is behind others in a long line waits for them, not for a rank.
  if (oldest) oldest->since = std::max(oldest->since, guard_.collective_end());
  return guard_.Follow(now, oldest);
}

void Engine::Finish() {
  try {
    if (std::exchange(lingers_, false)) coordinator_.Attend(false);
    Stop(*outcome_);
  } catch (const std::exception& error) {
    handles_->Fail(term_, Status::Internal(std::string("the engine failed: ") + error.what()));
    [[maybe_unused]] const std::vector<Mail> undrained = queue_.Close();
  }
}

Result<std::optional<Status>> Engine::Wait(Handle handle, TimePoint deadline) {
  waiting_callers_.fetch_add(1);
  DriveOrHandOver(handle, deadline);
  auto outcome = handles_->Wait(handle, deadline);
  waiting_callers_.fetch_sub(1);
  return outcome;
}

void Engine::DriveOrHandOver(Handle handle, TimePoint deadline) {
  SpinBudget budget(policy_.patience);
  while (!IsOver(handle)) {
    if (role_.TryLock()) return Drive(handle, deadline);
    if (!budget.Allows()) return HandOver();
  }
}

void Engine::Drive(Handle handle, TimePoint deadline) {
  bool is_over = false;
  if (!outcome_) {
    is_series_ = has_seat_ = seat_.TakeAgain();
    if (!has_seat_ && !lingers_) coordinator_.Attend(true);
    is_over = DriveOn(handle, deadline);
    EndDrive(is_over);
  }
  const TimePoint due = outcome_ ? TimePoint::min() : NextDeadline();
  role_.Unlock();
  if (!is_over) return HandOver();
  // Another caller that found the role taken relies on the engine's thread; so does a caller that
  // submitted too late for the last cycle.
  if (due < sleeps_until_.load() || waiting_callers_.load() > 1 || !queue_.empty()) {
    seat_.Wake();
  }
}

void Engine::HandOver() {
  hand_overs_.fetch_add(1);
  seat_.Wake();
}

void Engine::EndDrive(bool is_over) {
  const TimePoint now = Now();
  const bool is_one_of_many = is_series_ || now < drive_end_ + policy_.linger;
  drive_end_ = now;
  const bool expects_more = is_over && is_one_of_many && !HasInFlight();
  if (has_seat_) return seat_.Leave(expects_more ? now + policy_.linger : now, now);
  lingers_ = expects_more;
  if (!lingers_) coordinator_.Attend(false);
}

bool Engine::HasInFlight() const {
  return !pending_.empty() || join_ || !timeline_switches_.empty() || guard_.is_leaving();
}

bool Engine::DriveOn(Handle handle, TimePoint deadline) {
  const DefaultFloatEnvironment environment;
  SpinBudget budget(policy_.patience);
  for (bool is_first = true; !outcome_; is_first = false) {
    const int64_t before = Progress();
    RunCycle();
    const bool has_moved = Progress() != before;
    // Also by the thread that had the role until now.
    if ((has_moved || is_first) && IsOver(handle)) return true;
    if (has_moved) {
      budget.Renew();
    } else if (outcome_ || Now() >= deadline) {
      break;
    } else if (!budget.Allows()) {
      SleepDriving(std::min(deadline, NextDeadline()));
    }
  }
  return IsOver(handle);
}

void Engine::SleepDriving(TimePoint deadline) {
  if (has_seat_) return seat_.SleepDriving(deadline);
  is_series_ = Now() < drive_end_ + policy_.linger + policy_.patience;
  seat_.Take();
  has_seat_ = true;
  lingers_ = false;
  // Only the driving thread sleeps, so news need not wake another.
  coordinator_.Attend(false);
}

bool Engine::IsOver(Handle handle) {
  const Result<bool> complete = handles_->Poll(handle);
  return !complete.ok() || *complete;
}

int64_t Engine::Progress() const {
  const int64_t received = coordinator_.messages_received();
  return drained_count_ + received + negotiated_count_;
}

ActivitySink Engine::ActivitiesOf(const Group& group, std::string* open) {
  if (!timeline_.enabled()) return nullptr;
  return [this, &group, open](const char* activity) {
    if (!open->empty()) RecordForGroup(group, EventPhase::kEnd, *open);
    *open = activity;
    RecordForGroup(group, EventPhase::kBegin, activity);
  };
}

void Engine::RecordForGroup(const Group& group, EventPhase phase, std::string_view name) {
  if (!timeline_.enabled()) return;
  for (const auto& agreement : group) timeline_.Record(phase, agreement->request.name, name);
}

void Engine::RecordEvent(EventPhase phase, std::string_view track, std::string_view name,
                         std::string_view args) {
  if (timeline_.Record(phase, track, name, args)) seat_.Wake();
}

void Engine::BeginRound(std::string_view lane, std::string_view text) {
  RecordEvent(EventPhase::kBegin, lane, event_name::kRound, text);
}

void Engine::EndRound(std::string_view lane) {
  strategy_rounds_.fetch_add(1);
  RecordEvent(EventPhase::kEnd, lane, event_name::kRound, "");
}

void Engine::NoteOverflow(const Group& group) {
  if (++counted_.overflows > 1) return;
  const Request& request = group.front()->request;
  const std::string others =
      group.size() > 1 ? ", or a tensor that was fused with it," : std::string();
  MYDIST_LOG(kWarning)
      << CallText(request) << others << " has overflowed " << DataTypeName(request.dtype)
      << ": ranks that give finite numbers get infinite ones. Use Average in place of Sum, "
         "pass prescale_factor=1/size(), or reduce in a wider dtype. Said once; "
         "stats()[\"overflows\"] counts all.";
}

void Engine::Dump(FlightOccasion occasion, const std::string& message) const {
  if (dumper_ != nullptr) dumper_->Request(occasion, message);
}

void Engine::PrintStacks() {
  // The ranks that wait ask at about the same time.
  const TimePoint now = Now();
  if (now < printed_stacks_at_ + Duration(config_.stall_warning) / 2) return;
  printed_stacks_at_ = now;
  // Before the signal: the stacks come at once, and from another thread.
  const bool is_ours = IsQuitOurs();
  const char* const what = is_ours ? "its stacks follow"
                                   : "it prints no stacks, because SIGQUIT is not handled by "
                                     "mydist in this program";
  MYDIST_LOG(kWarning) << "other ranks wait for this rank; " << what;
  if (is_ours) SendQuitToSelf();
}

void Engine::CollectTimeline() {
  const TimePoint deadline = Now() + kTimelineGrace;
  while (!relay_.AllFinished() && Now() < deadline) {
    if (const TimePoint due = std::min(deadline, coordinator_.NextDeadline()); due > Now()) {
      coordinator_.Await(due);
    }
    if (!coordinator_.Exchange(Now()).ok() || !coordinator_.Negotiate(Now()).ok()) break;
    relay_.Flush(Now());
  }
}

}  // namespace mydist
