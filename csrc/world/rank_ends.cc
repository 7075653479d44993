#include "world/rank_ends.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
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

std::string RankEnd::Text(int rank) const {
  const char* const name = sigabbrev_np(number);
  const std::string shown = std::to_string(number);
  return (name == nullptr ? "Signal " + shown
                          : "SIG" + std::string(name) + " (signal " + shown + ")") +
         " ended rank " + std::to_string(rank) + ".";
}

RankEnds::RankEnds(int descriptor, std::vector<int> started)
    : descriptor_(descriptor), started_(std::move(started)) {
  struct stat file {};
  if (descriptor_ < 0 || fstat(descriptor_, &file) != 0) return;
  device_ = file.st_dev;
  inode_ = file.st_ino;
}

bool RankEnds::IsSameFile() const {
  struct stat file {};
  return fstat(descriptor_, &file) == 0 && file.st_dev == device_ && file.st_ino == inode_;
}

std::optional<RankEnd> RankEnds::Find(int rank) const {
  if (descriptor_ < 0 || rank < 0 || !IsSameFile()) return std::nullopt;
  const auto index = static_cast<size_t>(rank);
  if (!started_.empty() && index >= started_.size()) return std::nullopt;
  std::array<uint8_t, 2> entry{};
  const off_t offset = static_cast<off_t>(started_.empty() ? rank : started_[index]) * 2;
  if (pread(descriptor_, entry.data(), entry.size(), offset) != ssize_t{entry.size()}) {
    return std::nullopt;
  }
  if (entry[0] != kExited && entry[0] != kSignalled) return std::nullopt;
  return RankEnd{.by_signal = entry[0] == kSignalled, .number = entry[1]};
}

std::optional<int> RankEnds::AwaitOne(std::span<const int> ranks) {
  if (descriptor_ < 0 || ranks.empty()) return std::nullopt;
  if (!deadline_) deadline_ = Now() + kGrace;
  for (;;) {
    for (const int rank : ranks) {
      if (Find(rank)) return rank;
    }
    if (Now() >= *deadline_) return std::nullopt;
    std::this_thread::sleep_for(kLookInterval);
  }
}

}  // namespace mydist
