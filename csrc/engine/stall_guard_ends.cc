// What the StallGuard adds to an error: host, process and end of the rank, and what to do.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/stall_guard.h"

namespace mydist {
namespace {

// How long a rank waits in all for the word of another one, which looks every kLookInterval.
constexpr Duration kWordGrace = 2 * kLookInterval;

// Errors within it tell the same progress.
constexpr Duration kSameMoment = std::chrono::milliseconds(1);

std::string SeeOutput(const std::vector<int>& ranks) {
  return "See the output of " + RankListText(ranks) + ".";
}

}  // namespace

std::string StallGuard::HintFor(const Status& error) {
  const Failure& known = error.failure();
  if (known.ranks.empty() || (!error.is_loss() && error.code() != StatusCode::kTimeout)) return "";
  if (known.finding == kSilentFinding) return kSilentHint;
  if (error.code() == StatusCode::kTimeout) return known.finding == kLateFinding ? kLateHint : "";
  return SeeOutput(known.ranks);
}

Status StallGuard::Locate(const Status& status) {
  const Status located = LocateOne(status);
  const StatusCode code = located.code();
  const bool is_about_ends =
      located.is_loss() || code == StatusCode::kTimeout || code == StatusCode::kAborted;
  if (!is_about_ends) return located;
  if (!tell_progress_) return located;
  // Of many tensors that fail together, all have one list.
  if (told_progress_ == nullptr || Now() - told_at_ > kSameMoment) {
    coordinator_->HearProgress(Now());
    told_progress_ = std::make_shared<const std::vector<RankProgress>>(tell_progress_());
    told_at_ = Now();
  }
  Failure known = located.failure();
  known.progress = told_progress_;
  return Status(code, located.message()).About(known);
}

Status StallGuard::LocateOne(const Status& status) {
  if (status.ok()) return status;
  const Status located =
      status.About(FailureOf(status.failure().ranks)).About({.hint = HintFor(status)});
  Failure known = located.failure();
  const bool is_silent = known.finding == kSilentFinding;  // It has not ended.
  if (!located.is_loss() || known.signal != 0 || is_silent) return located;
  // A rank that has told why it leaves may still run. One that others tell of is the first.
  const bool has_told =
      located.is_consequence() && known.ranks.size() == 1 && known.finding != kDeadFinding;
  std::optional<int> rank = has_told ? known.ranks.front() : ends_.AwaitOne(known.ranks);
  std::optional<ProcessEnd> end = rank ? ends_.Find(*rank) : std::nullopt;
  if (const auto word = end || has_told ? std::nullopt : AwaitWord(known.ranks)) {
    rank = word->first;
    end = word->second;
  }
  if (!end) return located;
  if (!ends_.IsCause(*end) && (has_told || known.ranks.size() > 1)) return located;
  if (end->by_signal) {
    known.ranks = {*rank};  // So it is this rank's fault alone, and not the network's.
    known.hosts.clear();
    known.pids.clear();
    known.hint = SeeOutput(known.ranks);
    known.signal = end->number;
    known.finding = kDeadFinding;
  }
  return Status(located.code(), located.message())
      .WithSentence(EndText(*end, *rank))
      .About(known)
      .About(FailureOf(known.ranks));
}

bool StallGuard::MayBeToldOf(int rank) const {
  const std::vector<std::string>& hosts = topology_->hosts;
  const auto index = static_cast<size_t>(rank);
  if (ends_.has_file() || rank < 0 || index >= hosts.size()) return false;
  const bool is_far = hosts[index] != hosts[static_cast<size_t>(topology_->rank)];
  return is_far && std::count(hosts.begin(), hosts.end(), hosts[index]) > 1;
}

std::optional<std::pair<int, ProcessEnd>> StallGuard::AwaitWord(std::span<const int> ranks) {
  const bool may_be_told =
      std::any_of(ranks.begin(), ranks.end(), [this](int rank) { return MayBeToldOf(rank); });
  if (!may_be_told) return std::nullopt;
  if (!word_deadline_) word_deadline_ = Now() + kWordGrace;
  for (;;) {
    const TimePoint now = Now();
    for (const int rank : ranks) {
      const int signal = coordinator_->ToldSignalOf(rank, now);
      if (signal != 0) return std::pair(rank, ProcessEnd{.by_signal = true, .number = signal});
    }
    if (now >= *word_deadline_) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace mydist
