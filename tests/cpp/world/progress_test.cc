#include "world/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mydist {
namespace {

using std::chrono::seconds;

constexpr TimePoint kStart{std::chrono::hours(1)};

RankProgress Done(int rank, int64_t number, uint64_t turn, double age = 0) {
  return {.rank = rank,
          .operation = "allreduce",
          .tensor = "x",
          .number = number,
          .age = age,
          .turn = turn};
}

Failure FailureOf(std::vector<int> blamed, std::vector<RankProgress> progress) {
  return {.ranks = std::move(blamed),
          .progress = std::make_shared<const std::vector<RankProgress>>(std::move(progress))};
}

TEST(ProgressTest, LaterNewsOfARankCountWhoeverTellsThem) {
  ProgressTable table(3);
  table.Note(Done(2, 7, 7), kStart);
  table.Note(Done(2, 9, 9, 3), kStart);  // Older, and yet the rank has come further.
  table.Note(Done(2, 8, 8), kStart + seconds(1));
  table.Note(Done(0, 5, 5, 2), kStart);
  table.Note(Done(0, 5, 5, 9), kStart);  // No later news.
  table.Note(Done(3, 1, 1), kStart);     // Not of this job.
  table.Note(Done(-1, 1, 1), kStart);
  const std::vector<RankProgress> expected = {Done(0, 5, 5, 3), Done(2, 9, 9, 4)};
  EXPECT_EQ(table.Read(kStart + seconds(1)), expected);
}

TEST(ProgressTest, WhatIsKnownOfWaitsStaysWhereOnlyTheRestIsSeen) {
  ProgressTable table(1);
  RankProgress told = Done(0, 5, 5);
  told.waited = 2.5;
  table.Note(told, kStart);
  table.Note(Done(0, 6, 6), kStart);
  told.waited = 2.25;
  table.Note(told, kStart);
  ASSERT_EQ(table.Read(kStart).size(), 1u);
  EXPECT_EQ(table.Read(kStart)[0].number, 6);
  EXPECT_EQ(table.Read(kStart)[0].waited, 2.5);
}

TEST(ProgressTest, TravelsWholeAndBrokenBytesAreRefused) {
  const std::vector<RankProgress> told = {Done(0, 12, 40, 0.25), {.rank = 7}};
  const std::vector<uint8_t> bytes = EncodeProgress(told, 1000);
  const auto heard = DecodeProgress(bytes);
  ASSERT_TRUE(heard.ok()) << heard.status().ToString();
  EXPECT_EQ(*heard, told);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(DecodeProgress(std::span(bytes).first(length)).ok()) << length;
  }
  for (const double age : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_FALSE(DecodeProgress(EncodeProgress({{Done(0, 1, 1, age)}}, 1000)).ok()) << age;
  }
  EXPECT_FALSE(DecodeProgress(EncodeProgress({{Done(-2, 1, 1)}}, 1000)).ok());
  RankProgress other = Done(0, 1, 1);
  other.waited = -1;
  EXPECT_FALSE(DecodeProgress(EncodeProgress({{other}}, 1000)).ok());
}

TEST(ProgressTest, AMessageHasWholeEntriesUpToItsLimit) {
  std::vector<RankProgress> told;
  for (int rank = 0; rank < 100; ++rank) told.push_back(Done(rank, 1, 1));
  told[1].tensor = std::string(5000, 'n');
  const std::vector<uint8_t> bytes = EncodeProgress(told, 1000);
  EXPECT_LE(bytes.size(), 1000u);
  const auto heard = DecodeProgress(bytes);
  ASSERT_TRUE(heard.ok()) << heard.status().ToString();
  ASSERT_GT(heard->size(), 10u);
  EXPECT_EQ(heard->at(1).tensor, std::string(kMaxProgressName, 'n'));
  EXPECT_EQ(heard->back(), told[heard->size() - 1]);
}

TEST(ProgressTest, RanksThatHaveComeToOnePointAreToldTogether) {
  std::vector<RankProgress> progress;
  for (int rank = 0; rank < 62; ++rank) progress.push_back(Done(rank, 118, 9));
  progress.push_back(Done(62, 117, 8, 1.24));
  EXPECT_EQ(ProgressText(FailureOf({62}, progress)),
            "The last collective of rank 62 was allreduce 'x', number 117, as told 1.2 s before; "
            "that of ranks 0-61 was allreduce 'x', number 118.");
  progress[62] = Done(62, 118, 9);
  EXPECT_EQ(ProgressText(FailureOf({62}, progress)),
            "The last collective of rank 62 was allreduce 'x', number 118; that of ranks 0-61 was "
            "the same.");
}

TEST(ProgressTest, ATextIsShortWhateverTheRanksHaveDone) {
  std::vector<RankProgress> progress = {{.rank = 0}};
  for (int rank = 1; rank < 50; ++rank) progress.push_back(Done(rank, rank, 1));
  EXPECT_EQ(ProgressText(FailureOf({0}, progress)),
            "The last collective of rank 0 was none; that of rank 1 was allreduce 'x', number 1; "
            "that of rank 2 was allreduce 'x', number 2; 47 more ranks have completed others.");
}

TEST(ProgressTest, NothingIsSaidWhereNothingIsKnownOfThoseToBlame) {
  EXPECT_EQ(ProgressText({.ranks = {1}}), "");
  EXPECT_EQ(ProgressText(FailureOf({1}, {})), "");
  EXPECT_EQ(ProgressText(FailureOf({1}, {Done(0, 1, 1)})), "");
  EXPECT_EQ(ProgressText(FailureOf({}, {Done(0, 1, 1)})), "");
}

}  // namespace
}  // namespace mydist
