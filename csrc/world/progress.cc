#include "world/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>
#include <utility>

#include "world/process_set.h"

namespace mydist {
namespace {

constexpr size_t kMaxOperation = 32;
// Rank, turn, number, age, waited, and the lengths of two texts.
constexpr size_t kLeastBytes = 4 + 8 + 8 + 8 + 8 + 4 + 4;
// A year: longer than any job, and short enough for every clock.
constexpr double kMostSeconds = 366.0 * 24 * 3600;
// A text shows at most so many groups of ranks.
constexpr size_t kMostGroups = 3;
// The text tells the age of progress that is older.
constexpr double kOldSeconds = 0.5;

struct ProgressGroup {
  const RankProgress* progress = nullptr;
  std::vector<int> ranks;
  bool is_blamed = false;
};

bool IsBlamed(const Failure& failure, int rank) {
  return std::find(failure.ranks.begin(), failure.ranks.end(), rank) != failure.ranks.end();
}

// Ranks with equal progress share a group. Blamed ranks come first, then those behind.
std::vector<ProgressGroup> GroupsOf(const Failure& failure) {
  using Place = std::tuple<bool, int64_t, std::string, std::string>;
  std::map<Place, ProgressGroup> groups;
  for (const RankProgress& progress : *failure.progress) {
    const bool is_blamed = IsBlamed(failure, progress.rank);
    ProgressGroup& group =
        groups[{!is_blamed, progress.number, progress.operation, progress.tensor}];
    if (group.progress == nullptr || progress.age > group.progress->age) group.progress = &progress;
    group.ranks.push_back(progress.rank);
    group.is_blamed = is_blamed;
  }
  std::vector<ProgressGroup> sorted;
  for (auto& [place, group] : groups) sorted.push_back(std::move(group));
  return sorted;
}

void WriteOne(ByteWriter& writer, const RankProgress& progress) {
  writer.I32(progress.rank);
  writer.U64(progress.turn);
  writer.I64(progress.number);
  writer.F64(progress.age);
  writer.F64(progress.waited);
  writer.String(progress.operation, kMaxOperation);
  writer.String(progress.tensor, kMaxProgressName);
}

RankProgress ReadOne(ByteReader& reader) {
  RankProgress progress;
  progress.rank = reader.I32();
  progress.turn = reader.U64();
  progress.number = reader.I64();
  progress.age = reader.F64();
  progress.waited = reader.F64();
  progress.operation = reader.String(kMaxOperation);
  progress.tensor = reader.String(kMaxProgressName);
  if (progress.rank < 0 || progress.number < 0) reader.Fail("a rank or a number is below 0");
  for (const double seconds : {progress.age, progress.waited}) {
    if (!(seconds >= 0 && seconds <= kMostSeconds)) reader.Fail("a time is out of range");
  }
  return progress;
}

std::string WhatOf(const RankProgress& progress) {
  if (progress.operation.empty()) return "none";
  const std::string tensor = progress.tensor.empty() ? "" : " '" + progress.tensor + "'";
  const std::string number =
      progress.number > 0 ? ", number " + std::to_string(progress.number) : "";
  return progress.operation + tensor + number;
}

}  // namespace

void WriteProgress(ByteWriter& writer, std::span<const RankProgress> progress) {
  writer.Count(progress.size());
  for (const RankProgress& one : progress) WriteOne(writer, one);
}

std::vector<RankProgress> ReadProgress(ByteReader& reader) {
  std::vector<RankProgress> progress(reader.Count(kLeastBytes));
  for (RankProgress& one : progress) one = ReadOne(reader);
  return progress;
}

std::vector<uint8_t> EncodeProgress(std::span<const RankProgress> progress, size_t limit) {
  size_t count = 0;
  size_t bytes = sizeof(uint32_t);
  for (; count < progress.size(); ++count) {
    const RankProgress& one = progress[count];
    bytes += kLeastBytes + std::min(one.operation.size(), kMaxOperation) +
             std::min(one.tensor.size(), kMaxProgressName);
    if (bytes > limit) break;
  }
  ByteWriter writer;
  WriteProgress(writer, progress.first(count));
  return std::move(writer).Take();
}

Result<std::vector<RankProgress>> DecodeProgress(std::span<const uint8_t> bytes) {
  ByteReader reader(bytes, "progress of ranks");
  std::vector<RankProgress> progress = ReadProgress(reader);
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return progress;
}

void ProgressTable::Note(const RankProgress& told, TimePoint now) {
  if (told.rank < 0 || told.rank >= size_) return;
  const auto age = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(told.age));
  const TimePoint as_of = now - age;
  MutexLock lock(mutex_);
  Entry& entry = entries_[told.rank];
  // Shared memory has what the rank has completed, and not how long it has waited.
  const double waited = std::max(entry.told.waited, told.waited);
  entry.told.waited = waited;
  if (std::pair(told.turn, as_of) < std::pair(entry.told.turn, entry.as_of)) return;
  entry = {told, as_of};
  entry.told.waited = waited;
  entry.told.tensor.resize(std::min(told.tensor.size(), kMaxProgressName));
}

std::vector<RankProgress> ProgressTable::Read(TimePoint now) const {
  MutexLock lock(mutex_);
  std::vector<RankProgress> progress;
  for (const auto& [rank, entry] : entries_) {
    progress.push_back(entry.told);
    progress.back().age = std::max(ToSeconds(now - entry.as_of), 0.0);
  }
  return progress;
}

std::string ProgressText(const Failure& failure) {
  if (failure.progress == nullptr) return "";
  const std::vector<ProgressGroup> groups = GroupsOf(failure);
  if (groups.empty() || !groups.front().is_blamed) return "";
  const std::string first = WhatOf(*groups.front().progress);
  std::string text;
  size_t shown = 0;
  size_t left_out = 0;
  for (const ProgressGroup& group : groups) {
    if (++shown > kMostGroups) {
      left_out += group.ranks.size();
      continue;
    }
    const std::string what = WhatOf(*group.progress);
    const bool is_same = shown > 1 && what == first;
    text += (shown == 1 ? "The last collective of " : "; that of ") + RankListText(group.ranks) +
            " was " + (is_same ? "the same" : what);
    // A blamed rank may have gone on since; the others sent this as they left.
    const double age = group.is_blamed ? group.progress->age : 0;
    if (age >= kOldSeconds) text += ", as told " + SecondsText(age) + " before";
  }
  if (left_out > 0) text += "; " + std::to_string(left_out) + " more ranks have completed others";
  return text + ".";
}

}  // namespace mydist
