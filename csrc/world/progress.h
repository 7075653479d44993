// What the ranks of a job have completed last, as it travels between them and as an error has it.
// A rank that dies or falls silent can send nothing more, so ranks send it while they run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"

namespace mydist {

// Bytes of a tensor's name that are sent; a longer name is cut.
inline constexpr size_t kMaxProgressName = 96;

// Write and read a list of progress. Pure.
MYDIST_EXPORT void WriteProgress(ByteWriter& writer, std::span<const RankProgress> progress);
MYDIST_EXPORT std::vector<RankProgress> ReadProgress(ByteReader& reader);
// The same, as a message of its own: whole entries from the front, as many as `limit` bytes hold.
MYDIST_EXPORT std::vector<uint8_t> EncodeProgress(std::span<const RankProgress> progress,
                                                  size_t limit);
// kInternal when it is malformed.
MYDIST_EXPORT Result<std::vector<RankProgress>> DecodeProgress(std::span<const uint8_t> bytes);

// The latest progress of each rank. Thread-safe.
class MYDIST_EXPORT ProgressTable {
 public:
  explicit ProgressTable(int size) : size_(size) {}

  // Keeps it, unless later progress of the rank is known or the job has no such rank.
  void Note(const RankProgress& told, TimePoint now) MYDIST_EXCLUDES(mutex_);
  // In the order of ranks.
  std::vector<RankProgress> Read(TimePoint now) const MYDIST_EXCLUDES(mutex_);

 private:
  struct Entry {
    RankProgress told;
    TimePoint as_of = kPast;
  };
  const int size_;
  mutable Mutex mutex_;
  std::map<int, Entry> entries_ MYDIST_GUARDED_BY(mutex_);
};

// "The last collective of rank 3 was allreduce 'x', number 117; that of ranks 0-2 was …": of those
// to blame, then of the others, ranks with equal progress together. Empty where nothing is known of
// those to blame.
MYDIST_EXPORT std::string ProgressText(const Failure& failure);

}  // namespace mydist
