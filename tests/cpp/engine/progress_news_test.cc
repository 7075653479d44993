// What a rank tells of the progress of all, and what it hears. Jobs are in test_progress.py.
#include "engine/progress_news.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

namespace mydist {
namespace {

using std::chrono::milliseconds;

constexpr TimePoint kTold{std::chrono::hours(1)};

Request RequestOf(const std::string& name) {
  Request request;
  request.name = name;
  return request;
}

TEST(ProgressNewsTest, ARankWithoutSharedMemoryTellsItsNeighbour) {
  ProgressNews first(0, 2, nullptr);
  ProgressNews second(1, 2, nullptr);
  const std::vector<RankProgress> none = {{.rank = 1}};
  EXPECT_EQ(second.All(kTold), none) << "it has completed nothing so far";
  second.NoteDone(RequestOf("a"), 1);
  second.NoteDone(RequestOf("b"), 2);
  first.HearHeartbeat(second.ForHeartbeat(kTold), kTold);
  const std::vector<RankProgress> heard = first.All(kTold + milliseconds(500));
  ASSERT_EQ(heard.size(), 2u);
  const RankProgress expected = {
      .rank = 1, .operation = "allreduce", .tensor = "b", .number = 2, .age = 0.5, .turn = 2};
  EXPECT_EQ(heard[1], expected);
  first.HearHeartbeat(std::vector<uint8_t>{1, 2, 3}, kTold);
  EXPECT_EQ(first.All(kTold + milliseconds(500)), heard) << "bytes that are no progress news";
}

TEST(ProgressNewsTest, HeartbeatsTellOfAllRanksInTurnAndAlwaysOfTheirOwn) {
  constexpr int kSize = 100;
  ProgressNews news(7, kSize, nullptr);
  news.NoteDone(RequestOf("own"), 1);
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank != 7) news.Hear({{{.rank = rank, .operation = "allreduce", .tensor = "x"}}}, kTold);
  }
  std::set<int> told;
  for (int beat = 0; beat < 10; ++beat) {
    const std::vector<uint8_t> bytes = news.ForHeartbeat(kTold);
    EXPECT_LE(bytes.size(), 1024u);
    const auto progress = DecodeProgress(bytes);
    ASSERT_TRUE(progress.ok()) << progress.status().ToString();
    ASSERT_GT(progress->size(), 1u);
    EXPECT_EQ(progress->front().rank, 7);
    EXPECT_EQ(progress->front().tensor, "own");
    for (const RankProgress& one : *progress) told.insert(one.rank);
  }
  EXPECT_EQ(told.size(), static_cast<size_t>(kSize));
}

TEST(ProgressNewsTest, AFarewellTellsOfTheRankItselfAndOfThoseItBlames) {
  ProgressNews news(1, 50, nullptr);
  news.NoteDone(RequestOf("own"), 3);
  for (int rank = 2; rank < 50; ++rank) {
    news.Hear({{{.rank = rank, .operation = "allreduce", .tensor = "x", .number = rank}}}, kTold);
  }
  const auto ranks_in = [](const std::vector<RankProgress>& told) {
    std::vector<int> ranks;
    for (const RankProgress& one : told) ranks.push_back(one.rank);
    return ranks;
  };
  EXPECT_EQ(ranks_in(news.ForFarewell(std::vector<int>{40, 0}, kTold)), (std::vector{1, 40}));
  std::vector<int> many;
  for (int rank = 10; rank < 40; ++rank) many.push_back(rank);
  EXPECT_EQ(news.ForFarewell(many, kTold).size(), 9u);
}

TEST(ProgressNewsTest, OneRankHasNobodyToTell) {
  ProgressNews news(0, 1, nullptr);
  news.NoteDone(RequestOf("a"), 1);
  EXPECT_TRUE(news.All(kTold).front().operation.empty());
}

}  // namespace
}  // namespace mydist
