#include "controller/frozen/frozen_schedule.h"

#include <algorithm>

#include "base/status.h"
#include "controller/messages/report.h"
#include "controller/messages/response.h"

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
  turns_.clear();
  all_near_.clear();
  all_far_.clear();
  has_own_ = false;
  for (FrozenBucket& bucket : buckets) AddEntry(std::move(bucket));
  for (std::vector<int32_t>* all : {&all_near_, &all_far_}) {
    std::sort(all->begin(), all->end());
    all->erase(std::unique(all->begin(), all->end()), all->end());
  }
  active_ = true;
  wants_break_ = has_voted_ = has_wished_ = was_starved_ = false;
  words_.fill({.freeze = freeze, .ready_count = 0, .is_broken = false});
  head_ = 0;
  current_ = nullptr;
  progress_time_ = now;
  SkipOthers();
}

void FrozenSchedule::AddEntry(FrozenBucket bucket) {
  Entry& entry = cycle_.emplace_back();
  entry.bucket = std::move(bucket.bucket);
  const auto own = std::lower_bound(bucket.ranks.begin(), bucket.ranks.end(), rank_);
  if (own == bucket.ranks.end() || *own != rank_) return;
  has_own_ = true;
  entry.own_index = static_cast<int32_t>(own - bucket.ranks.begin());
  Seat(entry, bucket.ranks);
  all_near_.insert(all_near_.end(), entry.near.begin(), entry.near.end());
  if (Leads(entry)) all_far_.insert(all_far_.end(), entry.far.begin(), entry.far.end());
  entry.missing = entry.bucket.tensors.size();
  entry.held.resize(entry.missing);
  for (size_t i = 0; i < entry.missing; ++i) AddPlace({cycle_.size() - 1, i});
}

void FrozenSchedule::AddPlace(Place place) {
  const Bucket& bucket = cycle_[place.entry].bucket;
  const auto& agreement = bucket.tensors[place.tensor];
  const Key key{bucket.process_set, agreement->request.name};
  Turns& turns = turns_.try_emplace(key, Turns{agreement, {}}).first->second;
  turns.places.insert(std::upper_bound(turns.places.begin(), turns.places.end(), place), place);
}

void FrozenSchedule::RemovePlace(Place place) {
  const Bucket& bucket = cycle_[place.entry].bucket;
  const auto found =
      turns_.find(Key{bucket.process_set, bucket.tensors[place.tensor]->request.name});
  std::erase(found->second.places, place);
  if (found->second.places.empty()) turns_.erase(found);
}

// The calls without a name that the entry's next turn is for.
void FrozenSchedule::Renumber(size_t entry) {
  Bucket& bucket = cycle_[entry].bucket;
  for (size_t i = 0; i < bucket.growths.size(); ++i) {
    if (bucket.growths[i] == 0) continue;
    RemovePlace({entry, i});
    const Agreement& done = *bucket.tensors[i];
    bucket.tensors[i] = std::make_shared<const Agreement>(
        WithCallNumber(done, CallNumber(done.request).value_or(0) + bucket.growths[i]));
    AddPlace({entry, i});
  }
}

void FrozenSchedule::Seat(Entry& entry, const std::vector<int32_t>& ranks) const {
  for (const int32_t rank : ranks) {
    if (BoardOf(rank) == BoardOf(rank_)) {
      entry.near.push_back(rank);
    } else if (std::none_of(entry.far.begin(), entry.far.end(),
                            [&](int32_t leader) { return BoardOf(leader) == BoardOf(rank); })) {
      entry.far.push_back(rank);
    }
  }
}

void FrozenSchedule::SkipOthers() {
  while (has_own_ && cycle_[Head()].own_index < 0) {
    if (++head_ % cycle_.size() == 0) ++step_count_;
  }
}

// A tensor is in flight once at most, so its next turn is the one it is submitted for.
const FrozenSchedule::Place* FrozenSchedule::FindPlace(const Request& request) const {
  const auto found = turns_.find(Key{request.process_set, request.name});
  if (found == turns_.end()) return nullptr;
  const std::vector<Place>& places = found->second.places;
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
  current_ = &cycle_[Head()];
  if (has_voted_) {
    switch (Judge(read)) {
      case Verdict::kUndecided:
        return Move::kNone;
      case Verdict::kHostReady:
        words_[static_cast<size_t>(Voice::kHost)].ready_count = head_ + 1;
        return Move::kTell;
      case Verdict::kReady:
        return Execute(now);
      case Verdict::kBroken:
        return Thaw();
    }
  }
  if (wants_break_ || head_ >= most_buckets_) return Thaw();
  was_starved_ = IsStarved() && now >= PatienceEnd();
  if (was_starved_) return Thaw();
  if (!has_own_ || current_->missing > 0) return Move::kNone;
  has_voted_ = true;
  vote_time_ = now;
  words_[static_cast<size_t>(Voice::kRank)].ready_count = head_ + 1;
  return Move::kReady;
}

FrozenSchedule::Words FrozenSchedule::AwaitedWords() const {
  const Entry& entry = cycle_[Head()];
  if (entry.far.empty()) return {entry.near, Voice::kRank};
  if (!Leads(entry)) return {{entry.near.data(), 1}, Voice::kOutcome};
  if (word(Voice::kHost).SaysReady(head_)) return {entry.far, Voice::kHost};
  return {entry.near, Voice::kRank};
}

FrozenSchedule::Verdict FrozenSchedule::Judge(const WordReader& read) const {
  const Words words = AwaitedWords();
  const Verdict verdict = JudgeAll(words.ranks, words.voice, read);
  const bool is_of_host = words.voice == Voice::kRank && Leads(cycle_[Head()]);
  return is_of_host && verdict == Verdict::kReady ? Verdict::kHostReady : verdict;
}

std::vector<int32_t> FrozenSchedule::Undecided(const WordReader& read) const {
  const Words words = AwaitedWords();
  std::vector<int32_t> undecided;
  for (const int32_t rank : words.ranks) {
    if (rank == rank_) continue;
    if (JudgeAll({&rank, 1}, words.voice, read) == Verdict::kUndecided) undecided.push_back(rank);
  }
  return undecided;
}

FrozenSchedule::Verdict FrozenSchedule::JudgeAll(std::span<const int32_t> ranks, Voice voice,
                                                 const WordReader& read) const {
  Verdict verdict = Verdict::kReady;
  for (const int32_t rank : ranks) {
    const VoteWord theirs = rank == rank_ ? word(voice) : read(voice, rank);
    const bool counts = theirs.freeze == word(voice).freeze;
    if (counts && theirs.SaysReady(head_)) continue;
    // One BREAK decides, whatever the others will say.
    if (counts && theirs.is_broken) return Verdict::kBroken;
    verdict = Verdict::kUndecided;
  }
  return verdict;
}

FrozenSchedule::Move FrozenSchedule::Execute(TimePoint now) {
  Entry& entry = cycle_[Head()];
  if (Leads(entry)) words_[static_cast<size_t>(Voice::kOutcome)].ready_count = head_ + 1;
  held_count_ -= entry.held.size();
  for (std::optional<Held>& held : entry.held) held.reset();
  entry.missing = entry.held.size();
  // Without the growths, which no other caller needs: this is done for every bucket of every step.
  executed_ = {.process_set = entry.bucket.process_set, .tensors = entry.bucket.tensors};
  Renumber(Head());
  has_voted_ = false;
  progress_time_ = now;
  if (++head_ % cycle_.size() == 0) ++step_count_;
  SkipOthers();
  return Move::kExecute;
}

FrozenSchedule::Move FrozenSchedule::Thaw() {
  has_voted_ = false;
  for (VoteWord& word : words_) word.is_broken = true;
  active_ = false;
  return Move::kThaw;
}

// What its host has said of this bucket the others may have heard already: then this is no BREAK.
void FrozenSchedule::Abandon() {
  const bool may_be_decided = has_voted_ && word(Voice::kHost).SaysReady(head_);
  Thaw();
  if (may_be_decided) words_[static_cast<size_t>(Voice::kOutcome)].is_broken = false;
}

int32_t FrozenSchedule::teller() const {
  if (!has_voted_) return -1;
  const Entry& entry = cycle_[Head()];
  return entry.far.empty() || Leads(entry) ? -1 : entry.near[0];
}

std::span<const int32_t> FrozenSchedule::judges() const {
  const std::span<const int32_t> all = current_->near;
  return current_->far.empty() ? all : all.first(1);
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
