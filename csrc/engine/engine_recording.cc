// What the Engine records of itself: events of the timeline, and dumps of the flight recorder.

#include <algorithm>
#include <string>

#include "base/log.h"
#include "engine/engine.h"
#include "memory/shm/done_line.h"

namespace mydist {

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

void Engine::NoteDone(const Request& last, int64_t run) {
  if (shm_ == nullptr) return;
  shm::WriteDone(shm_->arena().done_line(shm_->index()), static_cast<uint8_t>(last.op),
                 static_cast<uint64_t>(run), last.name);
}

std::optional<std::string> Engine::LastDoneOf(int rank) const {
  const std::optional<int> peer = shm_->arena().IndexOf(rank);
  const auto done = peer ? shm::ReadDone(shm_->arena().done_line(*peer)) : std::nullopt;
  if (!done) return std::nullopt;
  const std::optional<OpKind> op = OpKindFromWire(done->op);
  if (!op || done->name.empty()) return "";
  const std::string number = done->number > 0 ? ", number " + std::to_string(done->number) : "";
  return std::string(OpKindName(*op)) + " '" + done->name + "'" + number;
}

void Engine::BeginRound(std::string_view lane, std::string_view text) {
  timeline_.Record(EventPhase::kBegin, lane, event_name::kRound, text);
}

void Engine::EndRound(std::string_view lane) {
  strategy_rounds_.fetch_add(1);
  timeline_.Record(EventPhase::kEnd, lane, event_name::kRound);
}

void Engine::Dump(FlightOccasion occasion, const std::string& message) const {
  if (dumper_ != nullptr) dumper_->Request(occasion, message);
}

void Engine::PrintStacks() {
  // The ranks that wait ask at about the same time.
  const TimePoint now = Now();
  if (now < printed_stacks_at_ + Duration(config_.stall_warning) / 2) return;
  printed_stacks_at_ = now;
  const char* const what = SendQuitToSelf() ? "its stacks follow"
                                            : "it prints no stacks, because SIGQUIT is not handled "
                                              "by mydist in this program";
  MYDIST_LOG(kWarning) << "other ranks wait for this rank; " << what;
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
