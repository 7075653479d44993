// FrozenMode: the time in which a rank follows a frozen schedule instead of negotiating. Joins the
// pure FrozenSchedule, the words of the VoteBoard, the notes that go up the tree, and, at the root,
// the FreezePolicy. Owned by the Coordinator, used by whoever drives the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/coordinator.h"
#include "controller/frozen/freeze_policy.h"
#include "controller/frozen/frozen_schedule.h"
#include "controller/membership.h"
#include "controller/messages/report.h"
#include "controller/process_set_table.h"
#include "transport/vote_board.h"

namespace mydist {

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
  // This rank is gone: nobody is to wait for its votes. What there is to send for that, if it is in
  // a freeze. It follows no later one.
  std::optional<HostVote> Leave();
  // The ranks whose words an undecided vote waits for; empty without such a vote.
  std::vector<int32_t> Undecided() const;
  // OK, or the loss of who alone could tell this rank the outcome of its vote.
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
