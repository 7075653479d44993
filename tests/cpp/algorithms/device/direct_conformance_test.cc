// Collectives over a network that takes GPU memory do what all others do, at every pace of the
// device, with the bits of the host; and each wait is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/device/direct_ranks.h"
#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"
#include "conformance/rooted_suite.h"
#include "fakes/forgetful_device.h"

namespace mydist::testing {
namespace {

using ::testing::HasSubstr;

class DirectConformance : public ::testing::TestWithParam<std::tuple<int, FakeDeviceOptions>> {
 protected:
  void OnRanks(const RankOrderedLimits& limits, const std::function<void(const Rank&)>& body) {
    OnDirectRanks(std::get<0>(GetParam()), std::get<1>(GetParam()), [&](const DirectRank& rank) {
      const auto direct = rank.On(rank.device, limits);
      ThroughDevice through(rank.device, rank.stream, rank.rank, direct.get());
      body({rank.rank, rank.size, &through, FoldsOnDevice});
    });
  }
};
INSTANTIATE_TEST_SUITE_P(
    RanksAndPaces, DirectConformance,
    ::testing::Combine(::testing::ValuesIn(Ranks(1, 4)), kEveryPace), [](const auto& instance) {
      const FakeDeviceOptions options = std::get<1>(instance.param);
      return std::to_string(std::get<0>(instance.param)) + "ranks_" + NameOfPace({options, 0});
    });

TEST_P(DirectConformance, MovesBytes) {
  OnRanks(kSmallRounds, CheckMovingCollectives);
  OnRanks({}, CheckMovingCollectives);
}

TEST_P(DirectConformance, MovesBytesToAndFromARoot) {
  OnRanks(kSmallRounds, CheckMovingRooted);
  OnRanks({}, CheckMovingRooted);
}

TEST_P(DirectConformance, Reduces) {
  OnRanks(kSmallRounds, [](const Rank& me) {
    for (const DataType dtype : kTypesOfEveryKind) {
      CheckReducingCollectives(me, dtype);
      CheckReducingRooted(me, dtype);
    }
  });
}

TEST_P(DirectConformance, ReducesWithTheUsualRounds) {
  OnRanks({}, [](const Rank& me) {
    CheckReducingCollectives(me, DataType::kFloat32);
    CheckReducingRooted(me, DataType::kBfloat16);
  });
}

TEST_P(DirectConformance, BarrierHoldsBackUntilAllHaveCome) {
  std::atomic<int> arrived = 0;
  OnRanks({}, [&](const Rank& me) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      ExpectOk(me.collectives->Barrier());
      EXPECT_GE(arrived.load(), round * me.size);
    }
  });
}

TEST(DirectBits, AreThoseOfTheHost) {
  OnDirectRanks(3, {}, [](const DirectRank& rank) {
    RankOrderedCollectives on_host(rank.network);
    const auto direct = rank.On(rank.device, kSmallRounds);
    ThroughDevice through(rank.device, rank.stream, rank.rank, direct.get());
    for (const DataType dtype : kAllDataTypes) {
      for (const ReduceOp op : ReduceOpsOf(dtype)) {
        if (!FoldsOnDevice(op, dtype)) continue;
        Reduction reduction = Reduction{.dtype = dtype, .op = op}.Resolved(rank.size);
        if (dtype != DataType::kBool) reduction.prescale = 0.75;
        for (const int64_t count : {1, 63, 5003}) {
          Elements here = ContributionOf(dtype, rank.rank, count);
          Elements there = here;
          ExpectOk(through.Allreduce(here.data(), count, reduction));
          ExpectOk(on_host.Allreduce(there.data(), count, reduction));
          EXPECT_TRUE(here.bytes == there.bytes)
              << ReduceOpName(op) << " of " << count << " " << DataTypeName(dtype);
        }
      }
    }
  });
}

BatchTraits TraitsOf(OpKind op, DataType dtype, ReduceOp reduce_op, int32_t device = 0) {
  return {.op = op, .dtype = dtype, .reduce_op = reduce_op, .device = device, .bytes = 100};
}

TEST(DirectSupports, WhatKernelsFoldAndWhateverMoves) {
  FakeDevice device;
  const StreamSeat seat{.device = &device, .stream = ValueOf(device.CreateStream())};
  const DeviceSpace all(seat, true);
  const DeviceSpace moves(seat, false);
  const auto sum = TraitsOf(OpKind::kAllreduce, DataType::kFloat32, ReduceOp::kSum);
  EXPECT_TRUE(all.Supports(sum));
  EXPECT_FALSE(moves.Supports(sum));
  for (const OpKind op : {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kAlltoall}) {
    EXPECT_TRUE(all.Supports(TraitsOf(op, DataType::kFloat8E4m3, ReduceOp::kSum)));
    EXPECT_TRUE(moves.Supports(TraitsOf(op, DataType::kFloat8E4m3, ReduceOp::kSum)));
  }
  EXPECT_FALSE(all.Supports(TraitsOf(OpKind::kAllreduce, DataType::kFloat32, ReduceOp::kAdasum)));
  EXPECT_FALSE(
      all.Supports(TraitsOf(OpKind::kAllreduce, DataType::kComplex64, ReduceOp::kProduct)));
  EXPECT_FALSE(all.Supports(TraitsOf(OpKind::kAllreduce, DataType::kFloat32, ReduceOp::kSum, 1)));
  EXPECT_FALSE(all.Supports(TraitsOf(OpKind::kBroadcast, DataType::kFloat32, ReduceOp::kSum, -1)));
}

// Nothing of it passes through memory of the host, and the host waits once for each exchange.
TEST(DirectTraffic, StaysOnTheDevice) {
  OnDirectRanks(2, {}, [](const DirectRank& rank) {
    constexpr int64_t kCount = 100'000;
    const auto direct = rank.On(rank.device, {});
    const auto data = ValueOf(rank.device->Allocate(kCount * 4));
    ExpectFine(rank.device->Enqueue(
        rank.stream, {.name = "fill", .writes = {{data.get(), kCount * 4}}, .work = [] {}}));
    ExpectFine(direct->Allreduce(data.get(), kCount, {}));
    const DeviceCounts counts = rank.device->counts();
    EXPECT_EQ(counts.pinned_allocations, 0);
    EXPECT_EQ(counts.copies, 0);
    EXPECT_EQ(counts.folds, 1);
    EXPECT_EQ(counts.blocks, 2);
    ExpectFine(rank.device->Block(*ValueOf(rank.device->Record(rank.stream))));
  });
}

// What the device of rank 0 finds when the wait with this number is dropped; -1: none is.
std::string ViolationWithout(int64_t block, int64_t* block_count = nullptr) {
  std::string violation;
  OnDirectRanks(2, {.pace = Pace::kLazy}, [&](const DirectRank& rank) {
    ForgetfulDevice forgetful(rank.device, {.block = rank.rank == 0 ? block : -1});
    const auto data = ValueOf(rank.device->Allocate(4000));
    {
      const auto direct = rank.On(&forgetful, kSmallRounds);
      const auto fill = [&] {
        return rank.device->Enqueue(
            rank.stream, {.name = "fill", .writes = {{data.get(), 4000}}, .work = [] {}});
      };
      // One shot; a round and what it has folded handed out; the same for another root.
      const std::vector<std::function<Status()>> calls = {
          [&] { return direct->Allreduce(data.get(), 10, {}); },
          [&] { return direct->Allreduce(data.get(), 500, {}); },
          [&] { return direct->Reduce(data.get(), data.get(), 500, {}, 1); }};
      Status status;
      for (const auto& call : calls) {
        if (status.ok()) status = fill();
        if (status.ok()) status = call();
      }
      // Who is left alone hears of it.
      if (!status.ok()) rank.connection->control.reset();
      if (rank.rank == 0 && block_count != nullptr) *block_count = forgetful.block_count();
      const auto end = rank.device->Record(rank.stream);
      if (end.ok()) static_cast<void>(rank.device->Block(**end));
    }
    if (rank.rank == 0) violation = rank.device->TakeViolation();
  });
  return violation;
}

TEST(DirectWaits, AreAllNeeded) {
  int64_t block_count = 0;
  EXPECT_EQ(ViolationWithout(-1, &block_count), "");
  EXPECT_EQ(block_count, 5);
  for (int64_t block = 0; block < block_count; ++block) {
    EXPECT_THAT(ViolationWithout(block), HasSubstr("the network")) << "without wait " << block;
  }
}

}  // namespace
}  // namespace mydist::testing
