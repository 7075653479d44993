#include "controller/frozen_mode.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

namespace mydist {

FrozenMode::FrozenMode(const CoordinatorOptions& options, VoteBoard* board)
    : rank_(options.rank),
      is_root_(options.rank == 0),
      board_(board),
      schedule_(options.rank,
                PatienceFor(options.stall_warning > Duration::zero() ? options.stall_warning
                                                                     : options.stall_shutdown)) {
  const size_t freeze_after = board == nullptr ? 0 : static_cast<size_t>(options.freeze_after);
  if (is_root_) policy_.emplace(options.size, freeze_after);
}

Status FrozenMode::Submit(std::vector<Request> requests, TimePoint now) {
  std::set<std::pair<ProcessSetId, std::string_view>> names;
  const bool is_one = requests.size() == 1;  // As most are.
  for (const Request& request : requests) {
    const bool is_new = is_one || names.emplace(request.process_set, request.name).second;
    if (is_new && !schedule_.Holds(request)) continue;
    return Status::InvalidArgument("tensor '" + request.name +
                                   "' is still in flight. Wait for it, or give the second one "
                                   "another name.");
  }
  for (Request& request : requests) schedule_.Submit(std::move(request), now);
  is_due_ = true;
  return Status::Ok();
}

void FrozenMode::Break() {
  if (!schedule_.active()) return;
  schedule_.Break();
  is_due_ = true;
}

void FrozenMode::SetWaiting(bool waiting, TimePoint now) { schedule_.SetWaiting(waiting, now); }

void FrozenMode::Leave() {
  if (!schedule_.active()) return;
  VoteWord word = schedule_.word();
  word.is_broken = true;
  board_->Cast(word, schedule_.everybody());
}

FrozenSchedule::WordReader FrozenMode::Reader() const {
  return [this](int32_t rank) { return board_->Read(rank); };
}

bool FrozenMode::HasNews() const {
  return is_due_ || (!is_root_ && !notes_.empty()) ||
         (HasUndecidedVote() && schedule_.IsDecided(Reader()));
}

TimePoint FrozenMode::NextDeadline() const {
  const TimePoint deadline = schedule_.NextDeadline();
  if (!HasUndecidedVote() || board_->wakes_peers()) return deadline;
  return std::min(deadline, look_time_ + kLookInterval);
}

Status FrozenMode::Freeze(ProcessSetTable::Frozen frozen, TimePoint now) {
  if (board_ == nullptr) {
    return Status::Internal("the root froze the schedule, but this rank has no memory to vote in");
  }
  if (schedule_.active()) return Status::Internal("the root froze the schedule twice");
  schedule_.Freeze(++freeze_count_, std::move(frozen.buckets), now);
  board_->Cast(schedule_.word(), {});
  for (Request& request : frozen.own) schedule_.Submit(std::move(request), now);
  is_due_ = true;
  return Status::Ok();
}

Result<FrozenMode::Outcome> FrozenMode::Follow(TimePoint now) {
  Outcome outcome;
  is_due_ = false;
  look_time_ = now;
  const FrozenSchedule::WordReader read = Reader();
  while (schedule_.active()) {
    switch (schedule_.Advance(read, now)) {
      case FrozenSchedule::Move::kNone:
        if (schedule_.TakeWish(now)) MYDIST_RETURN_IF_ERROR(Note(false));
        return outcome;
      case FrozenSchedule::Move::kReady:
        board_->Cast(schedule_.word(), schedule_.awaited());
        break;
      case FrozenSchedule::Move::kExecute:
        outcome.executed.push_back(schedule_.executed());
        break;
      case FrozenSchedule::Move::kThaw:
        board_->Cast(schedule_.word(), schedule_.everybody());
        outcome.thawed = schedule_.TakeHeld();
        ++thaw_count_;
        MYDIST_RETURN_IF_ERROR(Note(true));
        break;
    }
  }
  return outcome;
}

Status FrozenMode::TakeReport(const Report& report) {
  for (const ThawNote& note : report.thaws) {
    if (policy_) MYDIST_RETURN_IF_ERROR(policy_->TakeNote(note));
    if (!policy_) notes_.push_back(note);
  }
  return Status::Ok();
}

Status FrozenMode::Note(bool is_done) {
  const ThawNote note{rank_, is_done};
  if (policy_) return policy_->TakeNote(note);
  notes_.push_back(note);
  return Status::Ok();
}

}  // namespace mydist
