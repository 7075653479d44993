// StallGuard: bounds how long this rank waits for others, in the middle of a collective and between
// them. Owned by the engine; called by the thread that drives it.
// It warns at `warning`, and at twice, four … times that, and ends the wait at `shutdown`. Shortly
// before each it asks the ranks it waits for whom they wait for, so that it blames the rank at the
// end of the chain. What the root decides about it leaves to the root: then it only tells of ranks
// that give no answer.
// A rank that leaves asks in the same way: it waits as long as the ranks that stay give answers.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/coordinator.h"
#include "controller/messages/request.h"
#include "world/peer_findings.h"
#include "world/rank_ends.h"
#include "world/topology.h"
#include "world/watchdog.h"

namespace mydist {

class StallGuard final : public Watchdog {
 public:
  // Zero or less: never. `start`: the end of a wait for what init() measures.
  struct Limits {
    Duration warning = Duration::zero();
    Duration shutdown = Duration::zero();
    Duration start = Duration::zero();
  };
  // Both pointers outlive this object.
  StallGuard(const Limits& limits, const Topology* topology, Coordinator* coordinator,
             RankEnds ends = {});

  // Takes what the heartbeats found out about a rank. Any thread; wake the engine afterwards.
  void Report(const PeerFinding& finding) { findings_.Report(finding); }
  // What has been reported is the loss of a rank, like that of a connection. To be called in every
  // cycle.
  Status TakeFindings();

  // Told of each warning, after the log.
  void SetOnWarning(std::function<void(const std::string& text)> on_warning) {
    on_warning_ = std::move(on_warning);
  }
  // What each rank has completed last, also one that is dead, as far as it is known.
  void TellProgressBy(std::function<std::vector<RankProgress>()> tell) {
    tell_progress_ = std::move(tell);
  }
  // The collective that begins or, null, has ended: the first of its tensors, and how many it has.
  void SetCollective(const Request* first, size_t count);
  TimePoint collective_begin() const { return collective_begin_; }
  TimePoint collective_end() const { return collective_end_; }
  // In it. kTimeout names the ranks to blame; also the errors of Coordinator::AttendWait.
  Status Look(TimePoint begin, std::span<const int> peers) override;
  // The same where the waiting rank does not know whom it waits for.
  Status LookInCollective();

  // Something is in flight from now on.
  void Expect(TimePoint now);
  // What has been in flight for longest between two collectives; nothing: nothing is.
  struct InFlight {
    const Request* request = nullptr;
    TimePoint since;
  };
  // To be called with it at NextFollow. kTimeout when the wait is to end and nothing else ends it.
  Status Follow(TimePoint now, const std::optional<InFlight>& oldest);
  TimePoint NextFollow() const { return next_follow_; }
  // The status with host, process and end of the rank that it names, where that is one, and with
  // what all ranks have completed last. May wait a
  // moment until the end is told, by the kernel, a launcher or a rank of the other one's host.
  Status Locate(const Status& status);
  // The same of a signal. mydistrun tells the ranks of all hosts by itself: then no farewell waits.
  Status LocateForOthers(const Status& error) override {
    if (ends_.has_file()) return error;
    const Status located = Locate(error);
    return located.failure().signal != 0 ? located : error;
  }

  // This rank leaves, and waits until all ranks have departed. It waits `patience` for ranks that
  // give no answer; for others without an end, or with `awaits_living` false no longer either.
  // A second call changes both.
  void BeginLeave(TimePoint now, Duration patience, bool awaits_living);
  bool is_leaving() const { return leave_.has_value(); }
  // To be called at NextLeave. kTimeout when it is to leave without the others.
  Status FollowLeave(TimePoint now);
  TimePoint NextLeave() const { return leave_ ? leave_->next : kNever; }

  // A call that waits for other ranks without a tensor in flight, as join(), since `since`; "":
  // there is none. The ranks it waits for may have much to do before they come: only one that gives
  // no answer ends it, with kTimeout. To be called at NextFollowCall.
  Status FollowCall(TimePoint now, std::string_view call, TimePoint since);
  TimePoint NextFollowCall() const { return call_ ? call_->next : kNever; }

  // What the root says of a tensor that has waited too long, with what this rank has found out:
  // which of the ranks to blame give no answer, and what the others have done last. Any other
  // status stays as it is.
  Status Refine(const Status& status, TimePoint now) const;
  // The root warns of a tensor, refined as above. Whether that is to be told: at each doubling the
  // root or this rank itself tells of a silent rank, and the later one is left out.
  bool NoteTold(const std::string& tensor, const Status& refined);
  // A tensor has failed with this, so its ranks have been waited for. When this rank leaves and
  // they still give no answer, it does not wait for them again.
  void NoteSilent(const Status& error);

 private:
  static constexpr size_t kMostProgress = 3;  // Of so many ranks a text tells it.
  // One wait, and what is next for it.
  struct Episode {
    TimePoint begin = kPast;
    Duration next_warning = Duration::max();  // After the beginning.
    Duration end = Duration::max();
    bool asks = false;
    TimePoint asked_at;  // While it asks.
  };
  enum class Step { kWaitOn, kWarn, kEnd };
  static constexpr const char* kSilentHint =
      "Resume the silent rank, or end it and look at its host.";
  static constexpr const char* kLateHint =
      "Call the same collectives on every rank, with the same names. Look for a branch that only a "
      "few ranks take, or for a rank with more work.";
  // A wait without an end for ranks that give answers.
  struct PatientWait {
    TimePoint begin{};
    TimePoint answered{};  // When all ranks it waits for were last known to give answers.
    TimePoint next{};      // When to come again.
    bool asks = false;
  };
  // The wait of a rank that leaves.
  struct LeaveWait : PatientWait {
    Duration patience{};
    bool awaits_living = true;
    TimePoint next_line{};  // When it says next which ranks it waits for.
  };
  struct CallWait : PatientWait {
    Duration next_warning = Duration::max();  // After `answered`.
  };
  struct Answers {
    std::vector<int> silent;
    std::vector<int> idle;
  };
  // First asks, by `ask`, then gives the answers; nothing while there is time for them.
  std::optional<Answers> Ask(PatientWait& wait, TimePoint now, Duration patience,
                             const std::function<Status()>& ask);
  // What is to be done at `now`. `fresh`: the episode as it begins; `margin`: how much later than
  // by the settings. `next`: when to come again.
  Step Advance(Episode& episode, const Episode& fresh, TimePoint now, Duration margin,
               const std::function<Status()>& ask, TimePoint* next);
  // Whether time-outs have named all of them, as NoteSilent heard.
  bool WereFoundSilent(const std::vector<int>& ranks) const;
  Status LossBy(const PeerFinding& finding) const;
  Status LocateOne(const Status& status);
  // What to do about an error that says no more by itself.
  static std::string HintFor(const Status& error);
  // The signal that ended one of these ranks, all of other hosts, as a rank there tells it.
  std::optional<std::pair<int, ProcessEnd>> AwaitWord(std::span<const int> ranks);
  // Whether a rank that lives may know how that one has ended, and this one cannot.
  bool MayBeToldOf(int rank) const;
  void TellOfLeave(TimePoint now, const std::vector<int>& silent, const std::vector<int>& idle);
  Status Blame(const Request& about, const std::string& what, const std::string& phase) const;
  void Warn(const std::string& text) const;
  // Whom it is blamed on, as data.
  Failure FailureOf(const std::vector<int>& ranks) const;
  std::string Text(const std::vector<int>& silent, const std::vector<int>& idle) const;
  Progress OwnProgress() const;
  // What these have done last, as far as they have told.
  std::string ProgressText(const std::vector<int>& ranks) const;
  std::string Names(const std::vector<int>& ranks) const;

  const Duration warning_;
  const Duration shutdown_;
  const Duration start_;
  const Topology* const topology_;
  Coordinator* const coordinator_;
  RankEnds ends_;
  std::optional<TimePoint> word_deadline_;  // Of all waits for words, from the first one on.
  PeerFindings findings_;
  std::function<void(const std::string& text)> on_warning_;
  std::function<std::vector<RankProgress>()> tell_progress_;
  ProgressList told_progress_;      // As it was told last,
  TimePoint told_at_ = kPast;       // and when.
  const Request* first_ = nullptr;  // Of the collective in progress.
  size_t count_ = 0;
  OpKind last_op_ = OpKind::kAllreduce;  // Of the last collective, as the next two.
  std::string last_name_;
  size_t last_count_ = 0;    // 0: there has been none.
  std::vector<int> others_;  // All ranks of the job but this one.
  TimePoint collective_begin_;
  TimePoint collective_end_ = kPast;  // Of the last one.
  Episode in_collective_;
  Episode between_;
  TimePoint asked_at_ = kPast;      // When the last inquiry began.
  std::vector<int> silent_before_;  // At the end of the last inquiry of this episode between.
  // Silent ranks that the root has told of since this rank's own last look at the wait between; and
  // those that this rank has told of since, with the tensor.
  std::vector<int> told_by_root_;
  std::pair<std::string, std::vector<int>> told_here_;
  TimePoint next_follow_ = kNever;
  std::vector<int> found_silent_;  // As NoteSilent heard.
  std::optional<LeaveWait> leave_;
  std::optional<CallWait> call_;
};

}  // namespace mydist
