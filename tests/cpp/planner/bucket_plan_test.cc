#include "planner/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

namespace mydist {
namespace {

using Plan = std::vector<std::vector<size_t>>;

constexpr int64_t kMegabyte = int64_t{1} << 20;
const BucketLimits kNoChoice{.wanted_bytes = std::nullopt, .most_bytes = 64 * kMegabyte};

PathCosts Costs(double latency_s, double bytes_per_second) {
  return {std::chrono::duration<double>(latency_s), 1 / bytes_per_second};
}

BucketMember Gradient(int64_t bytes, DataType dtype = DataType::kFloat32,
                      std::string_view group = "") {
  return {.dtype = dtype, .bytes = bytes, .group = group};
}

TEST(BucketSizesTest, FollowTheSquareRoot) {
  // 100 MB, 100 µs, 10 GB/s: sqrt(1e8 · 1e-4 · 1e10).
  const BucketSizes sizes = ChooseBucketSizes(100'000'000, Costs(1e-4, 1e10), kNoChoice);
  EXPECT_EQ(sizes.bytes, 10'000'000);
  EXPECT_EQ(sizes.first_bytes, 2'500'000);
  const auto bytes_of = [](int64_t total, double latency_s, double bytes_per_second) {
    return ChooseBucketSizes(total, Costs(latency_s, bytes_per_second), kNoChoice).bytes;
  };
  EXPECT_EQ(bytes_of(400'000'000, 1e-4, 1e10), 20'000'000);
  EXPECT_EQ(bytes_of(100'000'000, 4e-4, 1e10), 20'000'000);
  EXPECT_EQ(bytes_of(100'000'000, 1e-4, 2.5e9), 5'000'000);
}

TEST(BucketSizesTest, AreTheBestOfAllUnderTheModel) {
  const double total = 1e8;
  const double latency = 3e-4;
  const double per_byte = 1 / 4e9;
  const auto cost = [&](double bytes) { return total / bytes * latency + bytes * per_byte; };
  const auto best =
      static_cast<double>(ChooseBucketSizes(100'000'000, Costs(latency, 4e9), kNoChoice).bytes);
  EXPECT_LE(cost(best), cost(best * 1.01));
  EXPECT_LE(cost(best), cost(best * 0.99));
}

TEST(BucketSizesTest, StayWithinLimits) {
  EXPECT_EQ(ChooseBucketSizes(10, Costs(1e-6, 1e9), kNoChoice).bytes, 256 << 10);
  EXPECT_EQ(ChooseBucketSizes(int64_t{1} << 60, Costs(1, 1e12), kNoChoice).bytes, 64 * kMegabyte);
  EXPECT_EQ(ChooseBucketSizes(int64_t{1} << 60, Costs(1, 1e12), {{}, 0}).bytes, 0);
  EXPECT_EQ(ChooseBucketSizes(int64_t{1} << 40, PathCosts{}, kNoChoice).bytes, 8 * kMegabyte);
}

TEST(BucketSizesTest, TheUsersChoiceWins) {
  const auto with = [](int64_t wanted_bytes) {
    return ChooseBucketSizes(1 << 30, Costs(1e-4, 1e10), {wanted_bytes, 64 * kMegabyte});
  };
  EXPECT_EQ(with(4 * kMegabyte).bytes, 4 * kMegabyte);
  EXPECT_EQ(with(4 * kMegabyte).first_bytes, kMegabyte);
  EXPECT_EQ(with(1000).bytes, 1000);
  EXPECT_EQ(with(0).bytes, 0);
  EXPECT_EQ(with(1000 * kMegabyte).bytes, 64 * kMegabyte);
}

TEST(BucketPlanTest, FillsTheFirstAndThenTheOthers) {
  const std::vector<BucketMember> members(9, Gradient(10));
  EXPECT_EQ(PlanBuckets(members, {20, 40}), (Plan{{0, 1}, {2, 3, 4, 5}, {6, 7, 8}}));
}

TEST(BucketPlanTest, WhatIsTooLargeIsABucketOfItsOwn) {
  const std::vector<BucketMember> members = {Gradient(100), Gradient(5), Gradient(100), Gradient(5),
                                             Gradient(5)};
  EXPECT_EQ(PlanBuckets(members, {20, 40}), (Plan{{0}, {1}, {2}, {3, 4}}));
}

TEST(BucketPlanTest, SizeZeroSeparatesAll) {
  const std::vector<BucketMember> members = {Gradient(0), Gradient(5), Gradient(0), Gradient(0)};
  EXPECT_EQ(PlanBuckets(members, {0, 0}), (Plan{{0}, {1}, {2}, {3}}));
}

TEST(BucketPlanTest, DtypesDoNotMixAndGroupsStayWhole) {
  const DataType half = DataType::kFloat16;
  const std::vector<BucketMember> members = {
      Gradient(10),       Gradient(10, half),
      Gradient(10),       Gradient(90, half, "g"),
      Gradient(10, half), Gradient(90, DataType::kFloat32, "g")};
  EXPECT_EQ(PlanBuckets(members, {40, 40}), (Plan{{0, 2}, {1, 4}, {3, 5}}));
}

TEST(BucketPlanTest, EveryGradientOnceInOrder) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<BucketMember> members;
    for (uint32_t i = random() % 50; i > 0; --i) {
      const std::string_view group = random() % 5 == 0 ? "g" : "";
      members.push_back(Gradient(
          random() % 30, random() % 3 == 0 ? DataType::kFloat16 : DataType::kFloat32, group));
    }
    const BucketSizes sizes{.first_bytes = static_cast<int64_t>(random() % 40), .bytes = 40};
    std::vector<size_t> seen;
    std::map<DataType, size_t> last;  // Of the members without a group.
    for (const auto& bucket : PlanBuckets(members, sizes)) {
      ASSERT_FALSE(bucket.empty());
      int64_t bytes = 0;
      for (const size_t i : bucket) {
        seen.push_back(i);
        bytes += members[i].bytes;
        EXPECT_EQ(members[i].group, members[bucket.front()].group);
        if (!members[i].group.empty()) continue;
        EXPECT_EQ(members[i].dtype, members[bucket.front()].dtype);
        const auto [previous, is_first] = last.emplace(members[i].dtype, i);
        if (!is_first) EXPECT_LT(std::exchange(previous->second, i), i);
      }
      const bool is_grouped = !members[bucket.front()].group.empty();
      EXPECT_TRUE(is_grouped || bucket.size() == 1 || bytes <= 40);
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), members.size());
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i);
  }
}

}  // namespace
}  // namespace mydist
