// FrozenMode: the time in which a rank follows a frozen schedule instead of negotiating. Joins the
// pure FrozenSchedule, the words of the VoteBoard, the notes that go up the tree, and, at the root,
// the FreezePolicy. Owned by the Coordinator, used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/frozen/frozen_schedule.h"
#include "controller/frozen/step_history.h"
#include "controller/membership.h"
#include "controller/messages/report.h"
#include "controller/process_set_table.h"
#include "transport/vote_board.h"

namespace mydist {

struct CoordinatorOptions;

// FreezePolicy: when the root freezes the schedule and when it lets it thaw. Pure; owned by the
// FrozenMode of rank 0.
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

class FrozenMode {
 public:
  // `board` and `farewells` outlive this object. `board` null: the job never freezes.
  FrozenMode(const CoordinatorOptions& options, VoteBoard* board, const Farewells* farewells);

  bool active() const { return schedule_.active(); }
  // Whether the stream's batches have to wait for a bucket that is not decided yet.
  bool HasUndecidedVote() const { return schedule_.HasUndecidedVote(); }
  // Whether Follow has something to do, or a note is to be sent.
  bool HasNews() const;
  bool HasHeld() const { return schedule_.HasHeld(); }
  bool has_left() const { return has_left_; }
  TimePoint NextDeadline() const { return schedule_.NextDeadline(); }

  // A word to leaders on other hosts.
  struct HostVote {
    VoteWord word;
    std::span<const int32_t> leaders;  // Until the next Freeze.
  };

  // While active. kInvalidArgument, with nothing taken, for a name that is in flight.
  Status Submit(std::vector<Request> requests, TimePoint now);
  // Something this rank wants needs negotiation. Nothing while not active.
  void Break();
  void SetWaiting(bool waiting, TimePoint now);
  // This rank is gone: no rank is to wait for its votes. What there is to send for that, if it is
  // in a freeze. It follows no later one.
  std::optional<HostVote> Leave();
  // The ranks whose words an undecided vote waits for; empty without such a vote.
  std::vector<int32_t> Undecided() const;
  // OK, or the loss of the rank that alone could tell this rank the outcome of its vote.
  const Status& LossOfOutcome() const;
  // What a leader on another host says. kInternal when it takes a vote back.
  Status TakeVote(int32_t source, const VoteWord& word);

  // The stream says freeze. kInternal when this rank cannot.
  Status Freeze(ProcessSetTable::Frozen frozen, TimePoint now);
  // What this rank and the others have done takes effect.
  struct Outcome {
    std::vector<Bucket> executed;  // By all their members, in order.
    std::vector<Request> thawed;   // To be announced, in order.
    std::vector<HostVote> told;    // To be sent, in order.
  };
  Result<Outcome> Follow(TimePoint now);

  Status TakeReport(const Report& report);
  void FillReport(Report& report) { report.thaws = std::exchange(notes_, {}); }

  // Root only. Null at the others.
  FreezePolicy* policy() { return policy_ ? &*policy_ : nullptr; }

  uint64_t step_count() const { return schedule_.step_count(); }
  uint64_t thaw_count() const { return thaw_count_; }

 private:
  VoteWord LastWord(Voice voice, int32_t rank) const;
  FrozenSchedule::WordReader Reader() const;
  HostVote ShowBroken();
  Status Note(bool is_done);

  const int32_t rank_;
  const bool is_root_;
  VoteBoard* const board_;
  const Farewells* const farewells_;
  std::vector<VoteWord> far_words_;  // By rank: of leaders on other hosts.
  FrozenSchedule schedule_;
  const uint32_t most_freezes_;
  std::optional<FreezePolicy> policy_;
  std::vector<ThawNote> notes_;  // For the parent.
  bool is_due_ = false;          // Something happened since the last Follow.
  bool has_left_ = false;
  uint32_t freeze_count_ = 0;
  uint64_t thaw_count_ = 0;
};

}  // namespace mydist
