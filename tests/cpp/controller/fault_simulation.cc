#include "controller/fault_simulation.h"

#include <algorithm>
#include <utility>

#include "controller/fault_rank.h"

namespace mydist {
namespace {

// More steps than any job takes.
constexpr uint32_t kMostSimulatedSteps = 200000;
// So often the clock may stand though nothing is under way.
constexpr int kMostStandstills = 1000;
// The errors of a rank that the others hear of at once come after this, the control port's grace.
constexpr Duration kPromptly = std::chrono::seconds(6);
// Those after a silence. A join may take a tensor's slot away once, and it begins to wait anew.
constexpr Duration kPatiently = 2 * kFaultShutdown + std::chrono::seconds(6);
// All of the program, whatever happens in it.
constexpr Duration kLongestJob = std::chrono::hours(2);
// When the second end of a connection notices that it is cut.
constexpr Duration kLateNotice = std::chrono::seconds(8);

}  // namespace

FaultSimulation::FaultSimulation(const FaultProgram& program, uint32_t seed, Sabotage sabotage)
    : program_(program),
      network_(program.size, program.hosts, seed, sabotage, [this](int rank) { MarkDue(rank); }),
      invariants_(program),
      faults_(program.faults),
      may_depart_(seed % 4 != 0),
      disturbed_until_(network_.now()) {
  const bool is_harmless = std::all_of(faults_.begin(), faults_.end(),
                                       [](const Fault& fault) { return IsHarmless(fault.kind); });
  may_depart_ = may_depart_ || !is_harmless;
  for (int rank = 0; rank < program.size; ++rank) {
    ranks_.push_back(std::make_unique<FaultRank>(program, rank, &network_, &invariants_,
                                                 sabotage == Sabotage::kAnswerTwice && rank == 1,
                                                 sabotage == Sabotage::kLoseBatches && rank == 1));
    is_due_.push_back(false);
  }
  for (int rank = 0; rank < program.size; ++rank) MarkDue(rank);
}

FaultSimulation::~FaultSimulation() = default;

void FaultSimulation::KeepTrace() {
  keeps_trace_ = true;
  network_.trace = [this](const std::string& what) { Trace(-1, what); };
  for (auto& rank : ranks_) {
    rank->trace = [this](int of, const std::string& what) { Trace(of, what); };
  }
}

void FaultSimulation::Trace(int rank, const std::string& what) {
  if (!keeps_trace_) return;
  const double seconds = ToSeconds(network_.now() - TimePoint() - std::chrono::hours(1));
  trace_.push_back("step " + std::to_string(step_) + ", " + std::to_string(seconds) +
                   " s: " + (rank < 0 ? what : "rank " + std::to_string(rank) + " " + what));
}

bool FaultSimulation::IsOver(int rank) const {
  return network_.HasCrashed(rank) || ranks_[static_cast<size_t>(rank)]->has_stopped() ||
         ranks_[static_cast<size_t>(rank)]->asleep_until() == kNever;
}

void FaultSimulation::MarkDue(int rank) {
  if (static_cast<size_t>(rank) >= is_due_.size() || is_due_[static_cast<size_t>(rank)]) return;
  is_due_[static_cast<size_t>(rank)] = true;
  due_.push_back(rank);
}

std::string FaultSimulation::Run(FaultTotals* totals) {
  const auto violation = [&] {
    return network_.violation().empty() ? invariants_.violation() : network_.violation();
  };
  while (violation().empty()) {
    if (++step_ > kMostSimulatedSteps) invariants_.Fail("the job makes no end\n" + State());
    ApplyFaults();
    if (network_.IsBusy() || !due_.empty()) {
      Step();
    } else if (!PassTime()) {
      break;
    }
  }
  if (violation().empty()) CheckEnd();
  if (totals != nullptr) Count(*totals);
  return violation();
}

void FaultSimulation::Step() {
  const size_t choices = network_.busy_count() + due_.size();
  if (network_.random()() % choices < network_.busy_count()) return network_.DeliverOne();
  const size_t pick = network_.random()() % due_.size();
  const int rank = due_[pick];
  due_[pick] = due_.back();
  due_.pop_back();
  is_due_[static_cast<size_t>(rank)] = false;
  if (IsOver(rank)) return;
  FaultRank& entry = *ranks_[static_cast<size_t>(rank)];
  if (entry.asleep_until() > network_.now()) return;
  if (entry.Turn(may_depart_)) MarkDue(rank);
  CheckStep(entry);
}

// Whether there is anything left to do.
bool FaultSimulation::PassTime() {
  CheckWaits();
  if (!may_depart_) CheckQuiet();
  if (!due_.empty()) return true;
  TimePoint next = network_.NextRelease();
  bool is_over = true;
  for (int rank = 0; rank < program_.size; ++rank) {
    if (IsOver(rank)) continue;
    is_over = false;
    next = std::min(next, ranks_[static_cast<size_t>(rank)]->NextDeadline());
  }
  if (is_over) return false;
  // What is lost may be waited for, for ever.
  if (is_breached_ && network_.now() > disturbed_until_ + kPatiently) return false;
  if (next == kNever) {
    invariants_.Fail("all wait for ever\n" + State());
    return false;
  }
  standstills_ = next <= network_.now() ? standstills_ + 1 : 0;
  if (standstills_ > kMostStandstills) invariants_.Fail("ranks have work for ever\n" + State());
  network_.SetTime(std::max(next, network_.now()));
  if (network_.now() > disturbed_until_ + kLongestJob) {
    invariants_.Fail("the job makes no end\n" + State());
  }
  for (int rank = 0; rank < program_.size; ++rank) {
    if (!IsOver(rank) && ranks_[static_cast<size_t>(rank)]->IsDue()) MarkDue(rank);
  }
  return true;
}

void FaultSimulation::ApplyFaults() {
  if (faults_.empty()) return;
  std::erase_if(faults_, [&](const Fault& fault) { return fault.at <= step_ && Apply(fault); });
}

void FaultSimulation::Disturb(Duration duration, bool is_prompt) {
  is_prompt_ = is_prompt_ && is_prompt;
  if (duration == Duration::max()) duration = Duration::zero();
  disturbed_until_ = std::max(disturbed_until_, network_.now() + duration);
}

// False when it cannot happen yet.
bool FaultSimulation::Apply(const Fault& fault) {
  if (IsOver(fault.rank)) return true;
  FaultRank& rank = *ranks_[static_cast<size_t>(fault.rank)];
  if (IsBreach(fault.kind)) {
    const bool happens = fault.kind == FaultKind::kRepeat ? network_.Repeat(fault.rank, fault.peer)
                         : fault.kind == FaultKind::kSwap ? network_.Swap(fault.rank, fault.peer)
                                                          : network_.Drop(fault.rank, fault.peer);
    is_breached_ = is_breached_ || happens;
    if (happens) Trace(-1, "BREACH: " + FaultText(fault));
    return happens;
  }
  Trace(-1, "FAULT: " + FaultText(fault));
  if (!IsHarmless(fault.kind)) {
    is_faulty_ = true;
    invariants_.Blame(fault.rank);
    if (fault.kind == FaultKind::kCut) invariants_.Blame(fault.peer);
  }
  switch (fault.kind) {
    case FaultKind::kDelay:
      Disturb(fault.duration, true);
      invariants_.Slow(fault.rank);
      invariants_.Slow(fault.peer);
      network_.Delay(fault.rank, fault.peer, fault.duration);
      break;
    case FaultKind::kPause:
    case FaultKind::kSilence:
      Disturb(fault.duration, fault.kind == FaultKind::kPause);
      invariants_.Slow(fault.rank);
      rank.Sleep(fault.duration);
      break;
    case FaultKind::kCrash:
      Disturb(Duration::zero(), true);
      network_.CrashAfter(fault.rank, fault.sends);
      break;
    case FaultKind::kFail:
      Disturb(Duration::zero(), true);
      rank.Fail(fault.is_loud ? Status::Internal("a disk is full") : Status::PeerLost("a cable"));
      break;
    case FaultKind::kLeave:
      Disturb(Duration::zero(), true);
      rank.LeaveEarly(fault.is_loud ? "shutdown" : "an exception ended its program");
      MarkDue(fault.rank);
      break;
    case FaultKind::kCut:
      Disturb(fault.is_loud ? Duration::zero() : kLateNotice, true);
      network_.Cut(fault.rank, fault.peer, Duration::zero(),
                   fault.is_loud ? Duration::zero() : kLateNotice);
      break;
    case FaultKind::kRepeat:
    case FaultKind::kSwap:
    case FaultKind::kDrop:
      break;
  }
  return true;
}

void FaultSimulation::CheckStep(FaultRank& rank) {
  if (network_.HasCrashed(rank.rank())) return;
  const FaultPlane& plane = network_.plane(rank.rank());
  const CoordinatorStats& stats = rank.coordinator().stats();
  if (stats.control_messages_sent != plane.sent_count ||
      stats.control_messages_received != plane.taken_count) {
    invariants_.Fail("rank " + std::to_string(rank.rank()) + " miscounts its messages");
  }
  if (is_breached_ || !rank.HasNewErrors()) return;
  for (const auto& other : ranks_) {
    if (other->coordinator().MustEndWait()) invariants_.Held(other->rank());
  }
  rank.CheckErrors();
}

// Nobody waits longer than it has to.
void FaultSimulation::CheckWaits() {
  if (is_breached_) return;
  const Duration most = is_prompt_ ? kPromptly : kPatiently;
  for (int rank = 0; rank < program_.size; ++rank) {
    const FaultRank& entry = *ranks_[static_cast<size_t>(rank)];
    if (IsOver(rank) || entry.asleep_until() > network_.now()) continue;
    const TimePoint since = entry.WaitsSince();
    if (since == kNever || network_.now() <= std::max(since, disturbed_until_) + most) continue;
    invariants_.Fail("rank " + std::to_string(rank) + " waits too long\n" + State());
  }
}

// All programs are through: nothing may be left of them.
void FaultSimulation::CheckQuiet() {
  for (const auto& rank : ranks_) {
    if (!rank->IsComplete() || rank->asleep_until() > network_.now()) return;
  }
  for (const auto& rank : ranks_) {
    if (rank->coordinator().NextDeadline() != kNever) {
      invariants_.Fail("rank " + std::to_string(rank->rank()) + " keeps something for ever");
    }
  }
  may_depart_ = true;
  for (int rank = 0; rank < program_.size; ++rank) MarkDue(rank);
}

void FaultSimulation::CheckEnd() {
  for (const auto& rank : ranks_) {
    if (network_.HasCrashed(rank->rank()) || !rank->has_stopped() || is_breached_) continue;
    const std::string who = "rank " + std::to_string(rank->rank());
    const bool is_fine = rank->IsComplete() && rank->errors().empty();
    if (!rank->IsComplete() && !rank->has_left_early() && rank->errors().empty()) {
      invariants_.Fail(who + " has neither its results nor an error");
    }
    if (is_faulty_) continue;
    if (!is_fine || !rank->has_finished()) invariants_.Fail(who + " did not end well\n" + State());
    if (rank->coordinator().stats().thaws != ranks_[0]->coordinator().stats().thaws) {
      invariants_.Fail(who + " has not thawed with the others");
    }
    const CoordinatorStats& stats = rank->coordinator().stats();
    if (program_.freeze_after == 0 &&
        stats.cache_hits + stats.cache_misses != rank->submitted_count()) {
      invariants_.Fail(who + " miscounts what it has submitted");
    }
  }
}

void FaultSimulation::Count(FaultTotals& totals) {
  bool had_error = false;
  bool refuses = false;
  uint64_t frozen = 0;
  for (const auto& rank : ranks_) {
    frozen += rank->coordinator().stats().frozen_steps;
    if (network_.HasCrashed(rank->rank())) continue;
    had_error = had_error || (!rank->errors().empty() && !invariants_.IsCulprit(rank->rank()));
    for (const Status& error : rank->errors()) {
      refuses = refuses || error.code() == StatusCode::kInternal;
    }
  }
  ++totals.jobs;
  totals.steps += step_;
  totals.faulty += is_faulty_ ? 1 : 0;
  totals.breached += is_breached_ ? 1 : 0;
  totals.frozen += frozen > 0 ? 1 : 0;
  totals.with_errors += had_error ? 1 : 0;
  totals.refused += is_breached_ && refuses ? 1 : 0;
}

std::string FaultSimulation::State() const {
  std::string text;
  for (const auto& rank : ranks_) {
    text += "  rank " + std::to_string(rank->rank()) + ": " +
            (network_.HasCrashed(rank->rank()) ? "dead" : rank->Text()) + "\n";
  }
  return text;
}

}  // namespace mydist
