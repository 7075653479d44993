// How ranks have ended and how far they have come: their words, and the file of the launcher.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "target.h"
#include "world/departure.h"
#include "world/progress.h"
#include "world/rank_ends.h"

namespace mydist::fuzz {
namespace {

// What a rank says is passed on by the next one: both blame the same ranks for the same cause.
void Farewell(std::span<const uint8_t> bytes) {
  const std::string words = ToText(bytes);
  const Status heard = PeerHasLeft(3, "rank 3", words);
  FUZZ_EXPECT(heard.code() == StatusCode::kPeerLost || heard.code() == StatusCode::kTimeout);
  const std::vector<int>& ranks = heard.failure().ranks;
  FUZZ_EXPECT(!ranks.empty() && ranks.size() <= 32);
  FUZZ_EXPECT(std::all_of(ranks.begin(), ranks.end(), [](int rank) { return rank >= 0; }));
  FUZZ_EXPECT(!heard.message().empty());
  const Status passed_on = PeerHasLeft(4, "rank 4", FarewellWords(heard));
  FUZZ_EXPECT(passed_on.failure().ranks == ranks);
  FUZZ_EXPECT(passed_on.failure().signal == heard.failure().signal);
  FUZZ_EXPECT(passed_on.cause() == heard.cause());
  FUZZ_EXPECT(passed_on.code() == heard.code());
}

std::vector<Bytes> FarewellSeeds() {
  const Status lost = Status::PeerLost("lost rank 1").About({.ranks = {1}});
  const Status late = Status::Timeout("waited for 10 s").About({.ranks = {0, 2}});
  const Status killed = lost.About({.signal = 9, .finding = kDeadFinding});
  const Status next = PeerHasLeft(1, "rank 1", FarewellWords(Status::Internal("disk full")));
  return {ToBytes(FarewellWords(lost)), ToBytes(FarewellWords(late)),
          ToBytes(FarewellWords(next)), ToBytes(FarewellWords(Status::Internal("disk full"))),
          ToBytes("no list at all"),    ToBytes(FarewellWords(killed))};
}

// The file of an input, whole for the process: a descriptor costs more than the rest.
int FileOf(std::span<const uint8_t> content) {
  static const int kDescriptor = memfd_create("rank_ends", MFD_CLOEXEC);
  FUZZ_EXPECT(kDescriptor >= 0);
  FUZZ_EXPECT(ftruncate(kDescriptor, 0) == 0);
  FUZZ_EXPECT(pwrite(kDescriptor, content.data(), content.size(), 0) ==
              static_cast<ssize_t>(content.size()));
  return kDescriptor;
}

void Ends(std::span<const uint8_t> bytes) {
  Input input(bytes);
  std::vector<int> started(input.Byte() % 8);
  for (int& rank : started) rank = input.Byte();
  const Bytes content(input.Rest().begin(), bytes.end());
  const RankEnds ends(FileOf(content), started);
  for (int rank = -1; rank < 9; ++rank) {
    const auto end = ends.Find(rank);
    if (!end) continue;
    const int place = started.empty() ? rank : started[static_cast<size_t>(rank)];
    const auto offset = 2 * static_cast<size_t>(place);
    FUZZ_EXPECT(offset + 1 < content.size());
    FUZZ_EXPECT(content[offset] == (end->by_signal ? 2 : 1));
    FUZZ_EXPECT(content[offset + 1] == end->number);
    FUZZ_EXPECT(!EndText(*end, rank).empty());
  }
}

std::vector<Bytes> EndsSeeds() {
  return {ToBytes(std::string("\0\2\x9\1\1\0\0", 7)), ToBytes(std::string("\2\1\0\2\x9\1\x7f", 7))};
}

// What heartbeats carry, and what an error says of it.
void ProgressNews(std::span<const uint8_t> bytes) {
  const auto told = DecodeProgress(bytes);
  if (!told.ok()) return;
  const auto again = DecodeProgress(EncodeProgress(*told, bytes.size()));
  FUZZ_EXPECT(again.ok());
  FUZZ_EXPECT(*again == *told);
  constexpr TimePoint kNow{std::chrono::hours(1)};
  constexpr int kSize = 4;
  ProgressTable table(kSize);
  for (const RankProgress& progress : *told) table.Note(progress, kNow);
  const std::vector<RankProgress> known = table.Read(kNow);
  FUZZ_EXPECT(known.size() <= kSize);
  for (const RankProgress& progress : known) FUZZ_EXPECT(progress.age >= 0);
  const Failure failure = {.ranks = {1},
                           .progress = std::make_shared<const std::vector<RankProgress>>(known)};
  const bool is_known = std::ranges::any_of(known, [](const auto& one) { return one.rank == 1; });
  FUZZ_EXPECT(ProgressText(failure).empty() != is_known);
}

std::vector<Bytes> ProgressNewsSeeds() {
  const RankProgress last = {
      .rank = 1, .operation = "allreduce", .tensor = "a", .number = 7, .age = 0.5, .turn = 8};
  return {EncodeProgress({{last}}, 1000), EncodeProgress({{last, {.rank = 3}}}, 1000),
          EncodeProgress({}, 1000)};
}

}  // namespace

std::vector<Target> WorldTargets() {
  return {{"farewell", Farewell, FarewellSeeds},
          {"rank_ends", Ends, EndsSeeds},
          {"progress_news", ProgressNews, ProgressNewsSeeds}};
}

}  // namespace mydist::fuzz
