#include "controller/fusion_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace mydist {
namespace {

using Plan = std::vector<std::vector<size_t>>;
using Ready = std::vector<std::shared_ptr<const Agreement>>;

Request Tensor(int64_t element_count, OpKind op = OpKind::kAllreduce) {
  Request request;
  request.name = "t";
  request.op = op;
  request.shape = Shape({element_count});  // 4 bytes each
  return request;
}

std::shared_ptr<const Agreement> Agreed(Request request, std::vector<int64_t> first_dims = {}) {
  return std::make_shared<const Agreement>(Agreement{std::move(request), std::move(first_dims)});
}

Request InGroup(Request request, const std::string& group, int size) {
  request.group = group;
  request.group_size = size;
  return request;
}

TEST(FusionPlannerTest, FillsUpToTheThresholdExactly) {
  const Ready ready = {Agreed(Tensor(10)), Agreed(Tensor(10)), Agreed(Tensor(1))};
  EXPECT_EQ(PlanFusion(ready, 80), (Plan{{0, 1}, {2}}));
  EXPECT_EQ(PlanFusion(ready, 84), (Plan{{0, 1, 2}}));
}

TEST(FusionPlannerTest, WhatDoesNotFitBeginsTheNextBatch) {
  const Ready ready = {Agreed(Tensor(10)), Agreed(Tensor(20)), Agreed(Tensor(5)),
                       Agreed(Tensor(5))};
  EXPECT_EQ(PlanFusion(ready, 80), (Plan{{0}, {1}, {2, 3}}));
}

TEST(FusionPlannerTest, BeyondTheThresholdATensorStandsAlone) {
  const Ready ready = {Agreed(Tensor(0)), Agreed(Tensor(100)), Agreed(Tensor(0)),
                       Agreed(Tensor(3))};
  EXPECT_EQ(PlanFusion(ready, 80), (Plan{{0}, {1}, {2, 3}}));
}

TEST(FusionPlannerTest, ThresholdZeroFusesNothingButGroups) {
  const Ready ready = {Agreed(Tensor(0)), Agreed(Tensor(0)), Agreed(InGroup(Tensor(7), "g", 2)),
                       Agreed(InGroup(Tensor(8), "g", 2))};
  EXPECT_EQ(PlanFusion(ready, 0), (Plan{{0}, {1}, {2, 3}}));
}

TEST(FusionPlannerTest, OnlyEqualKindsFuse) {
  const Request base = Tensor(1);
  const auto differs = [&](auto change) {
    Request other = base;
    change(other);
    return PlanFusion(Ready{Agreed(base), Agreed(other)}, 1000).size() == 2;
  };
  EXPECT_FALSE(differs([](Request& r) { r.name = "other"; }));
  EXPECT_TRUE(differs([](Request& r) { r.op = OpKind::kReducescatter; }));
  EXPECT_TRUE(differs([](Request& r) { r.dtype = DataType::kInt32; }));
  EXPECT_TRUE(differs([](Request& r) { r.device = 0; }));
  EXPECT_TRUE(differs([](Request& r) { r.reduce_op = ReduceOp::kMax; }));
  EXPECT_TRUE(differs([](Request& r) { r.prescale = 2; }));
  EXPECT_TRUE(differs([](Request& r) { r.postscale = 2; }));
  EXPECT_TRUE(differs([](Request& r) { r.process_set = 1; }));
}

TEST(FusionPlannerTest, PropertiesWithoutMeaningDoNotSeparate) {
  Request a = Tensor(1, OpKind::kBroadcast);
  a.root_rank = 1;
  Request b = a;
  b.reduce_op = ReduceOp::kMax;
  b.prescale = 3;
  EXPECT_EQ(PlanFusion(Ready{Agreed(a), Agreed(b)}, 100), (Plan{{0, 1}}));
  b.root_rank = 0;
  EXPECT_EQ(PlanFusion(Ready{Agreed(a), Agreed(b)}, 100), (Plan{{0}, {1}}));
}

TEST(FusionPlannerTest, AlltoallAndBarrierNeverFuse) {
  const Ready ready = {Agreed(Tensor(1, OpKind::kAlltoall)), Agreed(Tensor(1, OpKind::kBarrier)),
                       Agreed(Tensor(1, OpKind::kAlltoall)), Agreed(Tensor(1, OpKind::kBarrier))};
  EXPECT_EQ(PlanFusion(ready, 1000), (Plan{{0}, {1}, {2}, {3}}));
}

TEST(FusionPlannerTest, AllgatherCountsTheRowsOfAllRanks) {
  Request request = Tensor(0, OpKind::kAllgather);
  request.shape = Shape({0, 5});
  const auto gathered = Agreed(request, {1, 2, 3});
  EXPECT_EQ(FusedBytes(*gathered), 6 * 5 * 4);
  EXPECT_EQ(PlanFusion(Ready{gathered, gathered}, 240), (Plan{{0, 1}}));
  EXPECT_EQ(PlanFusion(Ready{gathered, gathered}, 239), (Plan{{0}, {1}}));
}

TEST(FusionPlannerTest, AveragesOfIntegersCountWhatTravels) {
  Request request = Tensor(10);
  request.reduce_op = ReduceOp::kAverage;
  EXPECT_EQ(FusedBytes(*Agreed(request)), 10 * 4);  // float32
  for (const DataType dtype : {DataType::kUint8, DataType::kInt16, DataType::kInt32}) {
    request.dtype = dtype;
    EXPECT_EQ(FusedBytes(*Agreed(request)), 10 * 8);
  }
  request.dtype = DataType::kInt64;
  EXPECT_EQ(FusedBytes(*Agreed(request)), 10 * 16);
  request.reduce_op = ReduceOp::kSum;
  EXPECT_EQ(FusedBytes(*Agreed(request)), 10 * 8);
}

TEST(FusionPlannerTest, SizesThatOverflowStandAlone) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  Request request = Tensor(0, OpKind::kAllgather);
  EXPECT_EQ(FusedBytes(*Agreed(request, {kHuge, kHuge})), kHuge);
  request.shape = Shape({0, 1 << 20});
  EXPECT_EQ(FusedBytes(*Agreed(request, {int64_t{1} << 50})), kHuge);
  EXPECT_EQ(FusedBytes(*Agreed(Tensor(int64_t{1} << 62))), kHuge);
}

TEST(FusionPlannerTest, AGroupFusesOnlyWithItselfBeyondAnyThreshold) {
  Request half = InGroup(Tensor(100), "g", 3);
  half.dtype = DataType::kFloat16;
  const Ready ready = {Agreed(Tensor(1)), Agreed(InGroup(Tensor(100), "g", 3)), Agreed(half),
                       Agreed(InGroup(Tensor(100), "g", 3)), Agreed(Tensor(1))};
  EXPECT_EQ(PlanFusion(ready, 80), (Plan{{0, 4}, {1, 3}, {2}}));
}

TEST(FusionPlannerTest, BatchesOfAGroupAreAdjacent) {
  Request gather = InGroup(Tensor(1, OpKind::kAlltoall), "g", 3);
  const Ready ready = {Agreed(InGroup(Tensor(1), "g", 3)), Agreed(InGroup(Tensor(1), "h", 1)),
                       Agreed(gather), Agreed(InGroup(Tensor(2), "g", 3))};
  EXPECT_EQ(PlanFusion(ready, 80), (Plan{{0, 3}, {2}, {1}}));
}

TEST(FusionPlannerTest, EveryTensorOnceAndNoBatchBeyondTheThreshold) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Ready ready;
    for (uint32_t i = random() % 60; i > 0; --i) {
      Request request = Tensor(random() % 40);
      if (random() % 3 == 0) request.dtype = DataType::kFloat64;
      ready.push_back(Agreed(request));
    }
    const int64_t threshold = 1 + random() % 300;
    const Plan plan = PlanFusion(ready, threshold);
    std::vector<size_t> seen;
    for (const auto& batch : plan) {
      EXPECT_TRUE(std::is_sorted(batch.begin(), batch.end()));
      int64_t bytes = 0;
      for (const size_t index : batch) bytes += FusedBytes(*ready[index]);
      EXPECT_TRUE(batch.size() == 1 || bytes <= threshold);
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    std::sort(seen.begin(), seen.end());
    std::vector<size_t> all(ready.size());
    std::iota(all.begin(), all.end(), size_t{0});
    EXPECT_EQ(seen, all);
    EXPECT_EQ(PlanFusion(ready, threshold), plan);
  }
}

}  // namespace
}  // namespace mydist
