#include "controller/frozen/frozen_mode.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "controller/coordinator.h"
#include "world/topology.h"

namespace mydist {
namespace {

// For each rank, the lowest rank of its host.
std::vector<int32_t> BoardsOf(const std::vector<std::string>& hosts) {
  std::vector<int32_t> boards(hosts.size());
  for (const std::vector<int>& ranks : RanksByHost(hosts)) {
    for (const int rank : ranks) boards[static_cast<size_t>(rank)] = ranks.front();
  }
  return boards;
}

}  // namespace

FreezePolicy::FreezePolicy(int32_t size, size_t freeze_after, uint32_t most_freezes)
    : freeze_after_(freeze_after == 1 ? 2 : freeze_after),
      freezes_left_(most_freezes),
      has_thawed_(static_cast<size_t>(size), true),
      thawed_count_(has_thawed_.size()) {}

Status FreezePolicy::TakeNote(const ThawNote& note) {
  if (note.rank < 0 || static_cast<size_t>(note.rank) >= has_thawed_.size()) {
    return Status::Internal("rank " + std::to_string(note.rank) +
                            " is reported to have thawed, expected rank 0 to " +
                            std::to_string(has_thawed_.size() - 1));
  }
  const auto rank = static_cast<size_t>(note.rank);
  if (has_thawed_[rank]) {
    return Status::Internal("rank " + std::to_string(note.rank) +
                            " is reported to have thawed twice");
  }
  wants_thaw_ = wants_thaw_ || is_frozen_;
  was_starved_ = was_starved_ || note.was_starved;
  if (!note.is_done) return Status::Ok();
  has_thawed_[rank] = true;
  ++thawed_count_;
  return Status::Ok();
}

bool FreezePolicy::TakeThaw(bool must_thaw, TimePoint now) {
  if (!is_frozen_ || !(wants_thaw_ || must_thaw)) return false;
  is_frozen_ = wants_thaw_ = false;
  life_ = now - freeze_time_;
  wait_ = freeze_time_ - wait_begin_;
  wait_begin_ = now;
  return true;
}

// Judges the last freeze, once every rank has reported its end.
void FreezePolicy::Judge() {
  if (!life_) return;
  const int good_life = was_starved_ ? kGoodLifeOfStarved : kGoodLife;
  patience_ = *life_ > good_life * wait_ ? std::max<size_t>(patience_ / 2, 1)
                                         : std::min<size_t>(patience_ * 2, kMostPatience);
  life_ = std::nullopt;
  was_starved_ = false;
}

std::optional<size_t> FreezePolicy::TakeFreeze(StepHistory& history, TimePoint now) {
  wait_begin_ = std::min(wait_begin_, now);
  if (freeze_after_ == 0 || freezes_left_ == 0 || is_frozen_ || thawed_count_ < has_thawed_.size())
    return std::nullopt;
  Judge();
  const size_t clear_repeats = freeze_after_ * std::min(patience_, kMostClear);
  const std::optional<size_t> length = history.FindStep(freeze_after_, clear_repeats);
  if (!length || history.tensor_count() < patience_ * freeze_after_ * *length) return std::nullopt;
  is_frozen_ = true;
  --freezes_left_;
  freeze_time_ = now;
  std::fill(has_thawed_.begin(), has_thawed_.end(), false);
  thawed_count_ = 0;
  return length;
}

FrozenMode::FrozenMode(const CoordinatorOptions& options, VoteBoard* board,
                       const Farewells* farewells)
    : rank_(options.rank),
      is_root_(options.rank == 0),
      board_(board),
      farewells_(farewells),
      far_words_(static_cast<size_t>(options.size)),
      schedule_(options.rank, BoardsOf(options.hosts),
                PatienceFor(options.stall_warning > Duration::zero() ? options.stall_warning
                                                                     : options.stall_shutdown),
                options.vote_limits.buckets),
      most_freezes_(options.vote_limits.freezes) {
  const size_t freeze_after = board == nullptr ? 0 : static_cast<size_t>(options.freeze_after);
  if (is_root_) policy_.emplace(options.size, freeze_after, most_freezes_);
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

std::optional<FrozenMode::HostVote> FrozenMode::Leave() {
  is_due_ = false;  // There is nothing that it follows any more.
  has_left_ = true;
  if (!schedule_.active()) return std::nullopt;
  schedule_.Abandon();
  return ShowBroken();
}

const Status& FrozenMode::LossOfOutcome() const {
  static const Status kNone;
  const int32_t teller = schedule_.teller();
  return teller < 0 ? kNone : farewells_->LossOf(teller);
}

FrozenMode::HostVote FrozenMode::ShowBroken() {
  for (const Voice voice : {Voice::kRank, Voice::kOutcome}) {
    board_->Cast(voice, schedule_.word(voice), schedule_.all_near());
  }
  return {schedule_.word(Voice::kHost), schedule_.all_far()};
}

Status FrozenMode::TakeVote(int32_t source, const VoteWord& word) {
  VoteWord& before = far_words_[static_cast<size_t>(source)];
  if (!word.Follows(before)) return Status::Internal("it withdraws a vote on a frozen bucket");
  // The next freeze comes when this rank has thawed, and may reach others first.
  if (word.freeze > freeze_count_ + 1) {
    return Status::Internal("got a vote of freeze " + std::to_string(word.freeze) +
                            ", expected at most " + std::to_string(freeze_count_ + 1));
  }
  before = word;
  return Status::Ok();
}

VoteWord FrozenMode::LastWord(Voice voice, int32_t rank) const {
  return voice == Voice::kHost ? far_words_[static_cast<size_t>(rank)] : board_->Read(voice, rank);
}

FrozenSchedule::WordReader FrozenMode::Reader() const {
  return [this](Voice voice, int32_t rank) {
    const VoteWord word = LastWord(voice, rank);
    // One that left before it had heard of this freeze says nothing in it.
    if (word.freeze >= freeze_count_ || !farewells_->HasLeft(rank)) return word;
    return VoteWord{.freeze = freeze_count_, .ready_count = 0, .is_broken = true};
  };
}

std::vector<int32_t> FrozenMode::Undecided() const {
  if (!schedule_.HasUndecidedVote()) return {};
  return schedule_.Undecided(Reader());
}

bool FrozenMode::HasNews() const {
  return is_due_ || (!is_root_ && !notes_.empty()) ||
         (HasUndecidedVote() && schedule_.IsDecided(Reader()));
}

Status FrozenMode::Freeze(ProcessSetTable::Frozen frozen, TimePoint now) {
  if (board_ == nullptr) {
    return Status::Internal("the root froze the schedule, but this rank has no memory for votes");
  }
  if (has_left_) return Status::Aborted("this rank has left the job");
  if (schedule_.active()) return Status::Internal("the root froze the schedule twice");
  if (freeze_count_ >= most_freezes_) {
    return Status::Internal("the root froze the schedule more than " +
                            std::to_string(most_freezes_) + " times, which votes cannot count");
  }
  schedule_.Freeze(++freeze_count_, std::move(frozen.buckets), now);
  for (const Voice voice : {Voice::kRank, Voice::kOutcome}) {
    board_->Cast(voice, schedule_.word(voice), {});
  }
  for (Request& request : frozen.own) schedule_.Submit(std::move(request), now);
  is_due_ = true;
  return Status::Ok();
}

Result<FrozenMode::Outcome> FrozenMode::Follow(TimePoint now) {
  Outcome outcome;
  is_due_ = false;
  const FrozenSchedule::WordReader read = Reader();
  while (schedule_.active()) {
    switch (schedule_.Advance(read, now)) {
      case FrozenSchedule::Move::kNone:
        if (schedule_.TakeWish(now)) MYDIST_RETURN_IF_ERROR(Note(false));
        return outcome;
      case FrozenSchedule::Move::kReady:
        board_->Cast(Voice::kRank, schedule_.word(Voice::kRank), schedule_.judges());
        break;
      case FrozenSchedule::Move::kTell:
        outcome.told.push_back({schedule_.word(Voice::kHost), schedule_.far()});
        break;
      case FrozenSchedule::Move::kExecute:
        if (schedule_.leads()) {
          board_->Cast(Voice::kOutcome, schedule_.word(Voice::kOutcome), schedule_.near());
        }
        outcome.executed.push_back(schedule_.TakeExecuted());
        break;
      case FrozenSchedule::Move::kThaw:
        outcome.told.push_back(ShowBroken());
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
  const ThawNote note{rank_, is_done, is_done && schedule_.was_starved()};
  if (policy_) return policy_->TakeNote(note);
  notes_.push_back(note);
  return Status::Ok();
}

}  // namespace mydist
