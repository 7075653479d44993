#include "controller/frozen_schedule.h"

#include <algorithm>

#include "base/check.h"
#include "controller/report_check.h"

namespace mydist {

FrozenPatience PatienceFor(Duration stall_warning) {
  FrozenPatience patience;
  if (stall_warning <= Duration::zero()) return patience;
  patience.without = stall_warning / 10;
  patience.with_caller = std::min(patience.with_caller, patience.without);
  return patience;
}

void FrozenSchedule::Freeze(uint32_t freeze, std::vector<FrozenBucket> buckets, TimePoint now) {
  MYDIST_CHECK(!active_ && !HasHeld() && !buckets.empty());
  cycle_.clear();
  everybody_.clear();
  places_.clear();
  has_own_ = false;
  for (FrozenBucket& bucket : buckets) {
    Entry& entry = cycle_.emplace_back();
    entry.bucket = std::move(bucket.bucket);
    entry.ranks = std::move(bucket.ranks);
    const auto own = std::lower_bound(entry.ranks.begin(), entry.ranks.end(), rank_);
    if (own == entry.ranks.end() || *own != rank_) continue;
    has_own_ = true;
    everybody_.insert(everybody_.end(), entry.ranks.begin(), entry.ranks.end());
    entry.own_index = static_cast<int32_t>(own - entry.ranks.begin());
    entry.missing = entry.bucket.tensors.size();
    entry.held.resize(entry.missing);
    for (size_t i = 0; i < entry.missing; ++i) {
      const Key key{entry.bucket.process_set, entry.bucket.tensors[i]->request.name};
      places_[key].push_back({cycle_.size() - 1, i});
    }
  }
  std::sort(everybody_.begin(), everybody_.end());
  everybody_.erase(std::unique(everybody_.begin(), everybody_.end()), everybody_.end());
  active_ = true;
  wants_break_ = has_voted_ = has_wished_ = false;
  word_ = {.freeze = freeze, .ready_count = 0, .is_broken = false};
  head_ = 0;
  progress_time_ = now;
  SkipOthers();
}

void FrozenSchedule::SkipOthers() {
  while (has_own_ && cycle_[Head()].own_index < 0) {
    if (++head_ % cycle_.size() == 0) ++step_count_;
  }
}

// A tensor is in flight once at most, so its next turn is the one it is submitted for.
const FrozenSchedule::Place* FrozenSchedule::FindPlace(const Request& request) const {
  const auto found = places_.find(Key{request.process_set, request.name});
  if (found == places_.end()) return nullptr;
  const std::vector<Place>& places = found->second;
  const auto next = std::find_if(places.begin(), places.end(),
                                 [&](const Place& place) { return place.entry >= Head(); });
  return next == places.end() ? &places.front() : &*next;
}

void FrozenSchedule::Submit(Request request, TimePoint now) {
  progress_time_ = now;
  const uint64_t number = submitted_count_++;
  if (const Place* place = FindPlace(request)) {
    Entry& entry = cycle_[place->entry];
    std::optional<Held>& held = entry.held[place->tensor];
    const Agreement& agreement = *entry.bucket.tensors[place->tensor];
    if (!held && MatchesAgreement(request, agreement, entry.own_index)) {
      held = Held{std::move(request), number};
      --entry.missing;
      ++held_count_;
      return;
    }
  }
  strays_.push_back({std::move(request), number});
  Break();
}

bool FrozenSchedule::Holds(const Request& request) const {
  const Place* place = FindPlace(request);
  if (place != nullptr && cycle_[place->entry].held[place->tensor]) return true;
  return std::any_of(strays_.begin(), strays_.end(), [&](const Held& stray) {
    return stray.request.process_set == request.process_set && stray.request.name == request.name;
  });
}

void FrozenSchedule::SetWaiting(bool waiting, TimePoint now) {
  if (waiting == (waiting_since_ != kNever)) return;
  waiting_since_ = waiting ? now : kNever;
}

bool FrozenSchedule::IsStarved() const {
  return !has_voted_ && held_count_ > 0 && cycle_[Head()].missing > 0;
}

TimePoint FrozenSchedule::PatienceEnd() const {
  const TimePoint end = progress_time_ + patience_.without;
  if (waiting_since_ == kNever) return end;
  return std::min(end, std::max(progress_time_, waiting_since_) + patience_.with_caller);
}

TimePoint FrozenSchedule::NextDeadline() const {
  if (!active_) return kNever;
  if (has_voted_) return has_wished_ ? kNever : vote_time_ + patience_.without;
  return IsStarved() ? PatienceEnd() : kNever;
}

bool FrozenSchedule::TakeWish(TimePoint now) {
  if (!has_voted_ || has_wished_ || now < vote_time_ + patience_.without) return false;
  has_wished_ = true;
  return true;
}

FrozenSchedule::Move FrozenSchedule::Advance(const WordReader& read, TimePoint now) {
  MYDIST_CHECK(active_);
  if (has_voted_) {
    switch (Judge(read)) {
      case Verdict::kUndecided:
        return Move::kNone;
      case Verdict::kReady:
        return Execute(now);
      case Verdict::kBroken:
        return Thaw();
    }
  }
  if (wants_break_ || (IsStarved() && now >= PatienceEnd())) return Thaw();
  if (!has_own_ || cycle_[Head()].missing > 0) return Move::kNone;
  has_voted_ = true;
  vote_time_ = now;
  word_.ready_count = head_ + 1;
  return Move::kReady;
}

FrozenSchedule::Verdict FrozenSchedule::Judge(const WordReader& read) const {
  Verdict verdict = Verdict::kReady;
  for (const int32_t rank : cycle_[Head()].ranks) {
    const VoteWord word = rank == rank_ ? word_ : read(rank);
    if (word.freeze == word_.freeze && word.ready_count > head_) continue;
    // One BREAK decides, whatever the others will say.
    if (word.freeze == word_.freeze && word.is_broken) return Verdict::kBroken;
    verdict = Verdict::kUndecided;
  }
  return verdict;
}

FrozenSchedule::Move FrozenSchedule::Execute(TimePoint now) {
  executed_ = Head();
  Entry& entry = cycle_[executed_];
  held_count_ -= entry.held.size();
  for (std::optional<Held>& held : entry.held) held.reset();
  entry.missing = entry.held.size();
  has_voted_ = false;
  progress_time_ = now;
  if (++head_ % cycle_.size() == 0) ++step_count_;
  SkipOthers();
  return Move::kExecute;
}

FrozenSchedule::Move FrozenSchedule::Thaw() {
  has_voted_ = false;
  word_.is_broken = true;
  active_ = false;
  return Move::kThaw;
}

std::vector<Request> FrozenSchedule::TakeHeld() {
  std::vector<Held> all = std::exchange(strays_, {});
  for (Entry& entry : cycle_) {
    for (std::optional<Held>& held : entry.held) {
      if (held) all.push_back(*std::exchange(held, std::nullopt));
    }
  }
  held_count_ = 0;
  std::sort(all.begin(), all.end(),
            [](const Held& a, const Held& b) { return a.number < b.number; });
  std::vector<Request> requests;
  for (Held& held : all) requests.push_back(std::move(held.request));
  return requests;
}

}  // namespace mydist
