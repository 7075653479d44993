// FreezePolicy: when the root freezes the schedule and when it lets it thaw. Pure; owned by the
// FrozenMode of rank 0.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/frozen/step_history.h"
#include "controller/messages/report.h"
#include "transport/vote_board.h"

namespace mydist {

class FreezePolicy {
 public:
  // `freeze_after`: steps to be seen in a row, 1 counts as 2; 0: never freezes. Nor more often than
  // `most_freezes`.
  FreezePolicy(int32_t size, size_t freeze_after, uint32_t most_freezes = VoteLimits().freezes);

  // What a rank, or this one, says. kInternal when it has thawed already.
  Status TakeNote(const ThawNote& note);
  // To be asked before anything else is decided: whether to say thaw now; it counts as said.
  // `must_thaw`: something is to be decided that a frozen job could not follow.
  bool TakeThaw(bool must_thaw, TimePoint now);
  // The length of the step to freeze now; it counts as frozen.
  std::optional<size_t> TakeFreeze(StepHistory& history, TimePoint now);

  size_t freeze_after() const { return freeze_after_; }

 private:
  static constexpr size_t kMostPatience = 64;
  // A run of fewer than so many times freeze_after_ equal calls is taken for as many steps a few
  // times at most. More would keep jobs from freezing that do something else now and then.
  static constexpr size_t kMostClear = 8;
  // A freeze was worth it when it lasted longer than so many times the wait for it: one that ended
  // with a negotiation, and one that ended with a rank's patience (see FrozenPatience).
  static constexpr int kGoodLife = 2;
  static constexpr int kGoodLifeOfStarved = 16;

  void Judge();

  const size_t freeze_after_;
  uint32_t freezes_left_;
  bool is_frozen_ = false;
  bool wants_thaw_ = false;
  std::vector<bool> has_thawed_;  // By rank.
  size_t thawed_count_;
  size_t patience_ = 1;  // Times freeze_after_ steps are to pass.
  TimePoint wait_begin_ = kNever;
  TimePoint freeze_time_;
  std::optional<Duration> life_;  // Of the last freeze, until all notes of its end are there.
  Duration wait_{};               // For it.
  bool was_starved_ = false;      // What a note of its end says.
};

}  // namespace mydist
