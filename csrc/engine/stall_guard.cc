#include "engine/stall_guard.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/process.h"

namespace mydist {
namespace {

// How long ranks have for their answers before the guard speaks, and with short settings which part
// of the time.
constexpr Duration kAnswerTime = std::chrono::milliseconds(400);
constexpr int kLeastParts = 4;
// One that has been asked for less than this, or for half of that time, may be about to answer.
constexpr Duration kLeastAnswerTime = std::chrono::milliseconds(100);
// How much later than the root, which knows more, a rank looks for itself.
constexpr Duration kRootFirst = std::chrono::milliseconds(100);
// When to look again whether the root that decides about the end has become silent, and whether the
// ranks that kept this one from leaving without a silent one have left.
constexpr Duration kLookAgain = std::chrono::seconds(1);
constexpr size_t kMostNamed = 8;
// How often a rank that leaves names the ranks that it waits for.
constexpr Duration kLeaveLine = std::chrono::seconds(10);

// How long ranks have that have given no answer up to a time-out before.
constexpr Duration kShortAnswerTime = std::chrono::milliseconds(200);
// How often a rank that has failed looks whether all others have answered, and asks those that
// stay.
constexpr Duration kHurriedLook = std::chrono::milliseconds(10);
constexpr Duration kHurriedPause = std::chrono::milliseconds(50);

// Both are in ascending order.
bool AreAmong(const std::vector<int>& ranks, const std::vector<int>& all) {
  return std::includes(all.begin(), all.end(), ranks.begin(), ranks.end());
}

// Part of `limit`, which a wait has.
Duration TimeForAnswers(Duration limit) { return std::min(kAnswerTime, limit / kLeastParts); }

// Behind another one.
std::string Sentence(const std::string& text) { return text.empty() ? "" : " " + text; }

std::string WithMore(size_t count) {
  return count > 1 ? " with " + std::to_string(count - 1) + " more" : "";
}

std::string WhatOf(const Request& first, size_t count) { return CallText(first) + WithMore(count); }

}  // namespace

StallGuard::StallGuard(const Limits& limits, const Topology* topology, Coordinator* coordinator,
                       RankEnds ends)
    : warning_(OrNever(limits.warning)),
      shutdown_(OrNever(limits.shutdown)),
      start_(std::min(shutdown_, OrNever(limits.start))),
      topology_(topology),
      coordinator_(coordinator),
      ends_(std::move(ends)) {
  for (int rank = 0; rank < topology->size; ++rank) {
    if (rank != topology->rank) others_.push_back(rank);
  }
  coordinator_->TellProgressBy([this] { return OwnProgress(); });
}

void StallGuard::SetCollective(const Request* first, size_t count) {
  const Request* const first_ended = std::exchange(first_, first);
  const size_t count_ended = std::exchange(count_, count);
  if (first != nullptr) {
    collective_begin_ = Now();
    return;
  }
  collective_end_ = Now();
  last_op_ = first_ended->op;
  last_name_ = first_ended->name;
  last_count_ = count_ended;
  if (std::exchange(in_collective_, {}).asks) {
    coordinator_->EndInquiry();
  }
}

void StallGuard::Expect(TimePoint now) {
  const Duration first = std::min(warning_, shutdown_);
  if (next_follow_ == kNever && first != Duration::max()) next_follow_ = now + first / 2;
}

StallGuard::Step StallGuard::Advance(Episode& episode, const Episode& fresh, TimePoint now,
                                     Duration margin, const std::function<Status()>& ask,
                                     TimePoint* next) {
  if (episode.begin != fresh.begin) {
    if (episode.asks) coordinator_->EndInquiry();
    episode = fresh;
  }
  const TimePoint begin = episode.begin;
  *next = kNever;
  const Duration due = std::min(episode.next_warning, episode.end);
  if (due == Duration::max()) return Step::kWaitOn;
  const Duration lead = TimeForAnswers(due);
  const Duration waited = now - begin - margin;
  *next = begin + margin + (due - lead);
  if (waited < due - lead) return Step::kWaitOn;
  if (!episode.asks) {
    episode.asks = true;
    episode.asked_at = asked_at_ = now;
    // One that cannot be asked gives no answer either.
    if (const Status asked = ask(); !asked.ok()) MYDIST_LOG(kDebug) << asked.message();
  }
  // A rank that asks late, as it was stopped itself, waits for the answers all the same.
  *next = std::max(begin + margin + due, episode.asked_at + lead);
  if (now < *next) return Step::kWaitOn;
  *next = now;
  episode.asks = false;
  const bool is_end = waited >= episode.end;
  if (is_end) episode.end = waited + kLookAgain;
  while (episode.next_warning <= waited) {
    episode.next_warning = Doubled(episode.next_warning);
  }
  return is_end ? Step::kEnd : Step::kWarn;
}

Status StallGuard::Look(TimePoint begin, std::span<const int> peers) {
  if (peers.empty()) peers = others_;
  const TimePoint now = Now();
  MYDIST_RETURN_IF_ERROR(coordinator_->AttendWait(now, peers));
  MYDIST_RETURN_IF_ERROR(TakeFindings());
  static const Request kStart{.name = "measurements of init()"};
  const Request& about = first_ == nullptr ? kStart : *first_;
  TimePoint next;
  between_.asks = false;  // The inquiry is this wait's from now on.
  if (leave_) leave_->asks = false;
  if (call_) call_->asks = false;
  const Step step = Advance(
      in_collective_, {begin, warning_, first_ == nullptr ? start_ : shutdown_}, now,
      Duration::zero(), [&] { return coordinator_->Inquire(about.process_set, about.name, peers); },
      &next);
  if (step == Step::kWaitOn) return Status::Ok();
  const Status blame =
      Blame(about, "it has begun and has waited for " + SecondsText(now - begin), "reduce");
  coordinator_->EndInquiry();
  if (step == Step::kEnd) return blame;  // The engine adds the collective.
  const std::string what = first_ == nullptr ? about.name : WhatOf(about, count_);
  Warn(what + ": " + blame.message());
  return Status::Ok();
}

Status StallGuard::LookInCollective() {
  if (first_ == nullptr) return coordinator_->Exchange(Now());
  return Look(collective_begin_, {});
}

Status StallGuard::Follow(TimePoint now, const std::optional<InFlight>& oldest) {
  if (!oldest) {
    if (std::exchange(between_, {}).asks) coordinator_->EndInquiry();
    next_follow_ = kNever;
    return Status::Ok();
  }
  const Request& about = *oldest->request;
  if (between_.begin != oldest->since) {
    silent_before_.clear();
    told_by_root_.clear();
    told_here_ = {};
  }
  const Step step = Advance(
      between_, {oldest->since, warning_, shutdown_}, now, kRootFirst,
      [&] { return coordinator_->Inquire(about.process_set, about.name); }, &next_follow_);
  // Something else may be in flight for longer by then.
  next_follow_ = std::min(next_follow_, now + std::min(warning_, shutdown_) / 2);
  if (step == Step::kWaitOn) return Status::Ok();
  const Status blame = Blame(
      about, "it has waited for other ranks for " + SecondsText(now - oldest->since), "negotiate");
  const bool is_its_own = coordinator_->MustEndWait();
  silent_before_ = coordinator_->inquiry().Silent();
  coordinator_->EndInquiry();
  const Status named = blame.WithContext(CallText(about));
  if (step == Step::kEnd) return is_its_own ? named : Status::Ok();
  const std::vector<int> told = std::exchange(told_by_root_, {});
  const bool is_new = !silent_before_.empty() && !AreAmong(silent_before_, told);
  if (!is_its_own && !is_new) return Status::Ok();
  told_here_ = {about.name, silent_before_};
  Warn(named.message());
  return Status::Ok();
}

bool StallGuard::NoteTold(const std::string& tensor, const Status& refined) {
  if (refined.failure().finding != kSilentFinding) return true;
  const auto [own_tensor, told] = std::exchange(told_here_, {});
  if (own_tensor == tensor && AreAmong(refined.failure().ranks, told)) return false;
  told_by_root_ = refined.failure().ranks;
  return true;
}

Status StallGuard::TakeFindings() {
  if (!findings_.any()) return Status::Ok();
  Status first;
  for (const PeerFinding& finding : findings_.Take()) {
    const Status loss = coordinator_->JudgeLoss(finding.rank, LossBy(finding));
    if (first.ok()) {
      first = loss;
    } else if (!loss.ok()) {
      MYDIST_LOG(kError) << loss.message();  // The error is about one; none goes untold.
    }
  }
  return first;
}

Status StallGuard::LossBy(const PeerFinding& finding) const {
  const std::string who = RankText(finding.rank, topology_->hosts, topology_->pids);
  Failure failure = FailureOf({finding.rank});
  if (finding.kind == PeerFinding::Kind::kDead) {
    failure.finding = kDeadFinding;
    return Status::PeerLost(who + " has died; see its output").About(failure);
  }
  failure.finding = kSilentFinding;
  failure.elapsed = ToSeconds(finding.silence);
  failure.hint =
      "MYDIST_HEARTBEAT_TIMEOUT_SECONDS sets how long a rank may give no sign of life. Before you "
      "stop a rank with a debugger, set it to 0.";
  return Status::PeerLost(who + " has given no sign of life for " + SecondsText(finding.silence) +
                          ": " + ProcessStateText(topology_->SeenPid(finding.rank)))
      .About(failure);
}

void StallGuard::BeginLeave(TimePoint now, Duration patience, bool awaits_living) {
  if (!leave_) leave_ = LeaveWait{{.begin = now, .answered = now}, {}, true, now + kLeaveLine};
  leave_->patience = patience;
  leave_->awaits_living = awaits_living;
  leave_->next = awaits_living ? now + patience / 2 : leave_->begin + patience;
  // It has waited for these before, and asks only whether they still give no answer.
  if (!found_silent_.empty()) leave_->next = now;
  leave_->asks = false;
}

// It asks at half its patience, and after a missing answer again and again: a rank that is stopped
// for a moment is not silent.
Status StallGuard::FollowLeave(TimePoint now) {
  if (!leave_ || now < leave_->next) return Status::Ok();
  LeaveWait& leave = *leave_;
  const std::string late =
      "it has shut down and waited at most MYDIST_SHUTDOWN_SECONDS for the other ranks.";
  const TimePoint end = leave.begin + leave.patience;
  if (!leave.awaits_living && (found_silent_.empty() || now >= end)) {
    leave.next = kNever;
    return Status::Timeout(late);
  }
  // Then only the others are waited for: that the silent ones were resumed would change nothing.
  const Duration look = leave.awaits_living ? kShortAnswerTime : kHurriedLook;
  if (!leave.awaits_living && leave.asks && now < asked_at_ + kShortAnswerTime &&
      !WereFoundSilent(coordinator_->inquiry().Silent())) {
    leave.next = now + look;
    return Status::Ok();
  }
  const std::optional<Answers> answers =
      Ask(leave, now, leave.patience, [&] { return coordinator_->InquireWhoStays(); });
  if (!answers) {
    if (!found_silent_.empty()) leave.next = std::min(leave.next, now + look);
    return Status::Ok();
  }
  const auto& [silent, idle] = *answers;
  const bool are_known = WereFoundSilent(silent);
  // One that runs is waited for, whatever the others do.
  const bool goes_on = silent.empty() || !idle.empty();
  if (goes_on) leave.answered = now;
  if ((!goes_on && are_known) || now - leave.answered >= leave.patience) {
    leave.next = kNever;
    return Status::Timeout(late + " " + Text(silent, {}))
        .About({.finding = kSilentFinding})
        .About(FailureOf(silent));
  }
  if (!leave.awaits_living) {
    leave.next = now + kHurriedPause;
    return Status::Ok();
  }
  TellOfLeave(now, silent, idle);
  // Those that run may leave at once, and a silent one alone has been waited for.
  const Duration pause = found_silent_.empty()
                             ? leave.patience / 2
                             : std::clamp(now - leave.begin, kShortAnswerTime, kLookAgain);
  leave.next = goes_on ? std::min(now + pause, leave.next_line) : now;
  return Status::Ok();
}

bool StallGuard::WereFoundSilent(const std::vector<int>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(), [this](int rank) {
    return std::find(found_silent_.begin(), found_silent_.end(), rank) != found_silent_.end();
  });
}

std::optional<StallGuard::Answers> StallGuard::Ask(PatientWait& wait, TimePoint now,
                                                   Duration patience,
                                                   const std::function<Status()>& ask) {
  if (std::exchange(wait.asks, !wait.asks)) {
    Answers answers{coordinator_->inquiry().Silent(), coordinator_->inquiry().Idle()};
    coordinator_->EndInquiry();
    return answers;
  }
  asked_at_ = now;
  wait.next = now + TimeForAnswers(patience);
  if (const Status asked = ask(); !asked.ok()) MYDIST_LOG(kDebug) << asked.message();
  return std::nullopt;
}

// It asks at half its patience, and again when it would warn or end: a rank that is stopped for a
// moment is not silent.
Status StallGuard::FollowCall(TimePoint now, std::string_view call, TimePoint since) {
  const Duration patience = std::min(warning_, shutdown_);
  if (call.empty() || patience == Duration::max()) {
    if (call_ && call_->asks) coordinator_->EndInquiry();
    call_.reset();
    return Status::Ok();
  }
  if (!call_ || call_->begin != since) {
    call_ = CallWait{{since, now, now + patience / 2}, warning_};
  }
  CallWait& wait = *call_;
  if (now < wait.next) return Status::Ok();
  const std::optional<Answers> answers =
      Ask(wait, now, patience, [&] { return coordinator_->InquireWhoJoins(); });
  if (!answers) return Status::Ok();
  if (answers->silent.empty()) {
    wait.answered = now;
    wait.next_warning = warning_;
    wait.next = now + patience / 2;
    return Status::Ok();
  }
  const Duration silence = now - wait.answered;
  const std::string text = std::string(call) + ": it has waited for other ranks for " +
                           SecondsText(now - wait.begin) + ". " + Text(answers->silent, {});
  if (silence >= shutdown_) {
    Failure failure = FailureOf(answers->silent);
    failure.operation = call;
    failure.phase = "negotiate";
    failure.finding = kSilentFinding;
    failure.elapsed = ToSeconds(silence);
    failure.hint = kSilentHint;
    return Status::Timeout(text).About(failure);
  }
  if (silence >= wait.next_warning) {
    Warn(text);
    wait.next_warning = Doubled(wait.next_warning);
  }
  const Duration due = std::min(wait.next_warning, shutdown_);
  wait.next = std::max(now, wait.answered + due - TimeForAnswers(patience));
  return Status::Ok();
}

// One rank says it for all: the lowest of those that leave.
void StallGuard::TellOfLeave(TimePoint now, const std::vector<int>& silent,
                             const std::vector<int>& idle) {
  if (now < leave_->next_line) return;
  while (leave_->next_line <= now) leave_->next_line += kLeaveLine;
  const auto stays = [&](int rank) {
    return std::find(idle.begin(), idle.end(), rank) != idle.end() ||
           std::find(silent.begin(), silent.end(), rank) != silent.end();
  };
  // Above the last rank of a full list there may be others that stay: better two lines than none.
  const bool is_full = idle.size() + silent.size() >= kMostStaying;
  const int last = std::max(idle.empty() ? -1 : idle.back(), silent.empty() ? -1 : silent.back());
  const int end = is_full ? std::min(topology_->rank, last) : topology_->rank;
  for (int rank = 0; rank < end; ++rank) {
    if (!stays(rank)) return;
  }
  std::string whom = silent.empty() ? "" : " " + Text(silent, {});
  if (!idle.empty()) {
    whom = " " + Names(idle) + (idle.size() == 1 ? " runs and has" : " run and have") +
           " not shut down." + whom;
  }
  MYDIST_LOG(kWarning) << "shutdown has waited " << SecondsText(now - leave_->begin)
                       << " for other ranks." << whom;
}

Status StallGuard::Blame(const Request& about, const std::string& what,
                         const std::string& phase) const {
  const std::vector<int> silent = coordinator_->inquiry().Silent();
  const std::vector<int> idle = coordinator_->inquiry().Idle();
  Failure failure = FailureOf(silent.empty() ? idle : silent);
  failure.operation = OpKindName(about.op);
  failure.tensor = about.name;
  failure.phase = phase;
  if (!failure.ranks.empty()) failure.finding = silent.empty() ? kLateFinding : kSilentFinding;
  failure.hint = silent.empty() ? kLateHint : kSilentHint;
  return Status::Timeout(what + ". " + Text(silent, idle)).About(failure);
}

void StallGuard::Warn(const std::string& text) const {
  MYDIST_LOG(kWarning) << text;
  if (on_warning_) on_warning_(text);
}

Failure StallGuard::FailureOf(const std::vector<int>& ranks) const {
  Failure failure{.ranks = ranks};
  for (const int rank : ranks) {
    const auto index = static_cast<size_t>(rank);
    const bool has_host = index < topology_->hosts.size();
    failure.hosts.push_back(has_host ? topology_->hosts[index] : "");
    failure.pids.push_back(index < topology_->pids.size() ? topology_->pids[index] : 0);
  }
  if (ranks.size() != 1) return failure;
  failure.host = failure.hosts.front();
  failure.pid = failure.pids.front();
  return failure;
}

Status StallGuard::Refine(const Status& status, TimePoint now) const {
  if (status.code() != StatusCode::kTimeout) return status;
  const std::vector<int>& missing = status.failure().ranks;
  const Inquiry& inquiry = coordinator_->inquiry();
  const Duration due = std::min(warning_, shutdown_);
  const Duration least = std::min(kLeastAnswerTime, TimeForAnswers(due) / 2);
  const bool counts = inquiry.is_open() && now - asked_at_ >= least;
  std::vector<int> silent = counts ? inquiry.Silent() : silent_before_;
  std::erase_if(silent, [&](int rank) {
    return std::find(missing.begin(), missing.end(), rank) == missing.end();
  });
  if (silent.empty()) {
    return Status::Timeout(status.message() + Sentence(ProgressText(missing)))
        .About(FailureOf(missing))
        .About(status.failure())
        .About({.finding = missing.empty() ? "" : kLateFinding,
                .hint = missing.empty() ? "" : kLateHint});
  }
  return Status::Timeout(status.message() + " " + Text(silent, {}))
      .About(FailureOf(silent))
      .About({.finding = kSilentFinding, .hint = kSilentHint})
      .About(status.failure());
}

void StallGuard::NoteSilent(const Status& error) {
  const Failure& known = error.failure();
  if (error.code() != StatusCode::kTimeout || known.finding != kSilentFinding) return;
  found_silent_.insert(found_silent_.end(), known.ranks.begin(), known.ranks.end());
}

std::string StallGuard::Text(const std::vector<int>& silent, const std::vector<int>& idle) const {
  if (silent.size() == 1)
    return RankText(silent[0], topology_->hosts, topology_->pids) +
           " gives no answer: " + ProcessStateText(topology_->SeenPid(silent[0]));
  if (!silent.empty()) {
    return Names(silent) + " give no answer: they are stopped or cannot be reached.";
  }
  if (idle.empty()) return "All ranks that it waits for answer; they wait for each other.";
  return Names(idle) + (idle.size() == 1 ? " answers, but has" : " answer, but have") +
         " not reached this point." + Sentence(ProgressText(idle));
}

Progress StallGuard::OwnProgress() const {
  if (last_count_ == 0) return {};
  const std::string name = " '" + last_name_ + "'";
  return {std::string(OpKindName(last_op_)) + name + WithMore(last_count_),
          ToSeconds(Now() - collective_end_)};
}

std::string StallGuard::ProgressText(const std::vector<int>& ranks) const {
  std::string text;
  size_t told = 0;
  for (const int rank : ranks) {
    const auto found = coordinator_->progress().find(rank);
    if (found == coordinator_->progress().end() || ++told > kMostProgress) continue;
    const auto& [last, ago] = found->second;
    const std::string who = "rank " + std::to_string(rank);
    text += text.empty() ? "" : " ";
    text += last.empty() ? "So far " + who + " has completed no collective."
                         : "The last collective of " + who + " was " + last + ", " +
                               SecondsText(ago) + " ago.";
  }
  return text;
}

std::string StallGuard::Names(const std::vector<int>& ranks) const {
  std::string names;
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    names += (i == 0 ? "" : ", ") + RankText(ranks[i], topology_->hosts, topology_->pids);
  }
  if (ranks.size() > kMostNamed) {
    names += " and " + std::to_string(ranks.size() - kMostNamed) + " more";
  }
  return names;
}

}  // namespace mydist
