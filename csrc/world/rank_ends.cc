#include "world/rank_ends.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

namespace mydist {
namespace {

// As launcher/rank_ends.py writes them.
constexpr uint8_t kExited = 1;
constexpr uint8_t kSignalled = 2;
constexpr std::chrono::milliseconds kLookInterval{1};

}  // namespace

std::string EndText(const ProcessEnd& end, int rank) {
  const std::string number = std::to_string(end.number);
  const std::string who = "ank " + std::to_string(rank);
  if (!end.by_signal) return "R" + who + " exited with code " + number + ".";
  const char* const name = sigabbrev_np(end.number);
  return (name == nullptr ? "Signal " + number
                          : "SIG" + std::string(name) + " (signal " + number + ")") +
         " ended r" + who + ".";
}

RankEnds::RankEnds(int descriptor, std::vector<int> started)
    : descriptor_(descriptor), file_(FileIdentity::Of(descriptor)), started_(std::move(started)) {}

RankEnds::RankEnds(std::span<const int64_t> pids) {
  for (size_t rank = 0; rank < pids.size(); ++rank) {
    if (pids[rank] > 0 && pids[rank] != getpid()) {
      processes_.try_emplace(static_cast<int>(rank), static_cast<pid_t>(pids[rank]));
    }
  }
}

std::optional<ProcessEnd> RankEnds::Find(int rank) const {
  const auto process = processes_.find(rank);
  return process == processes_.end() ? Read(rank) : process->second.End();
}

std::optional<ProcessEnd> RankEnds::Read(int rank) const {
  if (!file_ || rank < 0 || FileIdentity::Of(descriptor_) != file_) return std::nullopt;
  const auto index = static_cast<size_t>(rank);
  if (!started_.empty() && index >= started_.size()) return std::nullopt;
  std::array<uint8_t, 2> entry{};
  const off_t offset = static_cast<off_t>(started_.empty() ? rank : started_[index]) * 2;
  if (pread(descriptor_, entry.data(), entry.size(), offset) != ssize_t{entry.size()}) {
    return std::nullopt;
  }
  if (entry[0] != kExited && entry[0] != kSignalled) return std::nullopt;
  return ProcessEnd{.by_signal = entry[0] == kSignalled, .number = entry[1]};
}

bool RankEnds::MayTell(std::span<const int> ranks) const {
  return file_ || std::any_of(ranks.begin(), ranks.end(), [this](int rank) {
           const auto process = processes_.find(rank);
           return process != processes_.end() && process->second.is_open();
         });
}

std::optional<int> RankEnds::AwaitOne(std::span<const int> ranks) {
  if (ranks.empty() || !MayTell(ranks)) return std::nullopt;
  if (!deadline_) deadline_ = Now() + kGrace;
  for (;;) {
    std::optional<int> first;
    for (const int rank : ranks) {
      const std::optional<ProcessEnd> end = Find(rank);
      if (end && IsCause(*end)) return rank;
      if (end && !first) first = rank;
    }
    if (first || Now() >= *deadline_) return first;
    std::this_thread::sleep_for(kLookInterval);
  }
}

bool RankEnds::IsCause(const ProcessEnd& end) const {
  const bool may_be_launcher =
      end.number == SIGTERM || end.number == SIGINT || end.number == SIGHUP;
  return end.by_signal && (file_ || !may_be_launcher);
}

}  // namespace mydist
