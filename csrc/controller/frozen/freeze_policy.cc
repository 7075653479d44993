#include "controller/frozen/freeze_policy.h"

#include <algorithm>
#include <string>

namespace mydist {

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

}  // namespace mydist
