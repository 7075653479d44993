#include "engine/progress_news.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/log.h"
#include "memory/shm/arena.h"

namespace mydist {
namespace {

// With the rest of the heartbeat, the datagram is small enough for every network.
constexpr size_t kNewsBytes = 1000;
// A farewell carries the progress of at most so many blamed ranks.
constexpr size_t kMostBlamed = 8;

// Nothing while the rank writes it.
std::optional<RankProgress> ProgressIn(const shm::DoneLine& line, int rank) {
  const std::optional<shm::LastDone> done = shm::ReadDone(line);
  if (!done) return std::nullopt;
  RankProgress progress{.rank = rank, .turn = done->turn};
  const std::optional<OpKind> op = OpKindFromWire(done->op);
  if (!op || done->name.empty()) return progress;
  progress.operation = OpKindName(*op);
  progress.tensor = done->name.substr(0, kMaxProgressName);
  progress.number = static_cast<int64_t>(done->number);
  return progress;
}

}  // namespace

ProgressNews::ProgressNews(int rank, int size, shm::ShmPort* shm)
    : rank_(rank), size_(size), shm_(shm), table_(size) {}

void ProgressNews::NoteDone(const Request& last, int64_t run, int64_t wait_us) {
  if (size_ == 1) return;  // No other rank asks.
  wait_us_.store(wait_us, std::memory_order_relaxed);
  shm::DoneLine& line = shm_ != nullptr ? shm_->arena().done_line(shm_->index()) : own_;
  shm::WriteDone(line, static_cast<uint8_t>(last.op), static_cast<uint64_t>(run), last.name);
}

void ProgressNews::Look(TimePoint now) const {
  const auto note = [&](const shm::DoneLine& line, int rank) {
    std::optional<RankProgress> progress = ProgressIn(line, rank);
    if (!progress) return;
    const int64_t wait_us = rank == rank_ ? wait_us_.load(std::memory_order_relaxed) : 0;
    progress->waited = 1e-6 * static_cast<double>(wait_us);
    table_.Note(*progress, now);
  };
  if (shm_ == nullptr) return note(own_, rank_);
  const std::vector<int>& ranks = shm_->arena().ranks();
  for (size_t index = 0; index < ranks.size(); ++index) {
    note(shm_->arena().done_line(static_cast<int>(index)), ranks[index]);
  }
}

void ProgressNews::Hear(std::span<const RankProgress> told, TimePoint now) {
  for (const RankProgress& progress : told) table_.Note(progress, now);
}

std::vector<RankProgress> ProgressNews::All(TimePoint now) const {
  Look(now);
  return table_.Read(now);
}

std::vector<RankProgress> ProgressNews::ForFarewell(std::span<const int> blamed,
                                                    TimePoint now) const {
  blamed = blamed.first(std::min(blamed.size(), kMostBlamed));
  std::vector<RankProgress> progress = All(now);
  std::erase_if(progress, [&](const RankProgress& one) {
    return one.rank != rank_ && std::find(blamed.begin(), blamed.end(), one.rank) == blamed.end();
  });
  return progress;
}

std::vector<uint8_t> ProgressNews::ForHeartbeat(TimePoint now) {
  std::vector<RankProgress> progress = All(now);
  const auto own = std::find_if(progress.begin(), progress.end(),
                                [this](const RankProgress& one) { return one.rank == rank_; });
  if (own == progress.end()) return EncodeProgress({}, kNewsBytes);
  std::rotate(progress.begin(), own, own + 1);
  const auto others = progress.begin() + 1;
  const auto count = static_cast<size_t>(progress.end() - others);
  if (count > 0) std::rotate(others, others + static_cast<long>(told_ % count), progress.end());
  std::vector<uint8_t> bytes = EncodeProgress(progress, kNewsBytes);
  const Result<std::vector<RankProgress>> sent = DecodeProgress(bytes);
  told_ += sent.ok() && !sent->empty() ? sent->size() - 1 : 0;
  return bytes;
}

void ProgressNews::HearHeartbeat(std::span<const uint8_t> news, TimePoint now) {
  const Result<std::vector<RankProgress>> told = DecodeProgress(news);
  if (told.ok()) return Hear(*told, now);
  MYDIST_LOG(kDebug) << "cannot read the progress in a heartbeat: " << told.status().message();
}

}  // namespace mydist
