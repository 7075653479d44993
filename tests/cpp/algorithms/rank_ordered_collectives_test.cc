#include "algorithms/rank_ordered_collectives.h"

#include <gtest/gtest.h>

#include <atomic>

#include "algorithms/counting_transport.h"
#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"
#include "conformance/on_every_rank.h"

namespace mydist {
namespace {

using testing::CountingTransport;
using testing::Elements;
using testing::OnEveryRank;
using testing::Rank;

// Many rounds even for small tensors, and slices at the smallest broadcast.
constexpr RankOrderedLimits kTiny{.one_shot_bytes = 0,
                                  .scatter_broadcast_bytes = 1,
                                  .scratch_bytes = 512,
                                  .minimum_round_bytes = 128};

void OnEveryCollectives(int size, const RankOrderedLimits& limits,
                        const std::function<void(const Rank&)>& body) {
  OnEveryRank(size, [&](Connection& connection) {
    RankOrderedCollectives collectives(connection.transport.get(), limits);
    body({connection.rank, connection.size, &collectives});
  });
}

class RankOrdered : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RankOrdered, ::testing::ValuesIn(Ranks(1)));

TEST_P(RankOrdered, Conforms) { OnEveryCollectives(GetParam(), {}, testing::CheckEveryCollective); }

TEST_P(RankOrdered, ConformsWithTinyLimits) {
  OnEveryCollectives(GetParam(), kTiny, testing::CheckEveryCollective);
}

TEST_P(RankOrdered, BarrierHoldsBackUntilAllHaveCome) {
  std::atomic<int> arrived = 0;
  OnEveryCollectives(GetParam(), {}, [&](const Rank& me) { testing::CheckBarrier(me, arrived); });
}

// What `body` sends, on each of the ranks.
void OnCounted(int size, const std::function<void(int rank, CountingTransport& transport,
                                                  RankOrderedCollectives& collectives)>& body) {
  OnEveryRank(size, [&](Connection& connection) {
    CountingTransport transport(*connection.transport);
    RankOrderedCollectives collectives(&transport);
    body(connection.rank, transport, collectives);
  });
}

TEST(RankOrderedCollectives, LargeTensorsSendTheMinimumOfBytes) {
  constexpr int64_t kCount = 1000003;
  for (const int size : {2, 3, 5, 8}) {
    OnCounted(size, [&](int, CountingTransport& transport, auto& collectives) {
      Elements data(DataType::kFloat32, kCount);
      ExpectOk(collectives.Allreduce(data.data(), kCount, {}));
      const double optimum = 2.0 * 4 * kCount * (size - 1) / size;
      const double rounding = 2.0 * 64 * size;  // A cache line per slice.
      EXPECT_NEAR(static_cast<double>(transport.sent_bytes()), optimum, rounding);
      EXPECT_EQ(transport.exchange_count(), 2);
    });
  }
  OnCounted(4, [](int rank, CountingTransport& transport, auto& collectives) {
    const Elements input(DataType::kFloat32, kCount);
    Elements output(DataType::kFloat32, rank == 2 ? kCount : 0);
    ExpectOk(collectives.Reduce(input.data(), output.data(), kCount, {}, 2));
    // Three quarters to the other owners of slices, and its own quarter to the root.
    const double share = rank == 2 ? 0.75 : 1.0;
    EXPECT_NEAR(static_cast<double>(transport.sent_bytes()), share * 4 * kCount, 4 * 64);
  });
  OnCounted(5, [](int rank, CountingTransport& transport, auto& collectives) {
    constexpr int64_t kBytes = int64_t{4} << 20;
    std::vector<uint8_t> data(static_cast<size_t>(kBytes));
    ExpectOk(collectives.Broadcast(data.data(), kBytes, 2));
    const double expected = rank == 2 ? 1.0 * kBytes : 3.0 / 4 * kBytes;
    EXPECT_NEAR(static_cast<double>(transport.sent_bytes()), expected, rank == 2 ? 0 : 3 * 64);
  });
}

TEST(RankOrderedCollectives, SmallTensorsAreOneExchangeAndABarrierLogarithmicallyMany) {
  OnCounted(4, [](int rank, CountingTransport& transport, auto& collectives) {
    Elements data(DataType::kFloat32, 16);
    ExpectOk(collectives.Allreduce(data.data(), 16, {}));
    EXPECT_EQ(transport.exchange_count(), 1);
    EXPECT_EQ(transport.message_count(), 3);
    ExpectOk(collectives.Reduce(data.data(), data.data(), 16, {}, 0));
    EXPECT_EQ(transport.exchange_count(), 2);
    EXPECT_EQ(transport.message_count(), rank == 0 ? 3 : 4);
  });
  OnCounted(5, [](int, CountingTransport& transport, auto& collectives) {
    ExpectOk(collectives.Barrier());
    EXPECT_EQ(transport.exchange_count(), 3);
  });
}

TEST(RankOrderedCollectives, EmptyTensorsSendNothing) {
  OnCounted(3, [](int, CountingTransport& transport, auto& collectives) {
    const std::vector<int64_t> none(3, 0);
    ExpectOk(collectives.Allreduce(nullptr, 0, {}));
    ExpectOk(collectives.Allgather(nullptr, nullptr, none));
    ExpectOk(collectives.Broadcast(nullptr, 0, 1));
    ExpectOk(collectives.Alltoall(nullptr, none, nullptr, none));
    ExpectOk(collectives.Reducescatter(nullptr, nullptr, none, {}));
    ExpectOk(collectives.Reduce(nullptr, nullptr, 0, {}, 1));
    ExpectOk(collectives.Gather(nullptr, nullptr, none, 1));
    ExpectOk(collectives.Scatter(nullptr, none, nullptr, 1));
    ExpectOk(collectives.AdasumAllreduce(nullptr, none, {.op = ReduceOp::kAdasum}));
    EXPECT_EQ(transport.exchange_count(), 0);
  });
}

TEST(RankOrderedCollectives, ScratchIsBoundedAndStopsGrowing) {
  OnEveryRank(3, [](Connection& connection) {
    const RankOrderedLimits limits{.scratch_bytes = int64_t{256} << 10};
    RankOrderedCollectives collectives(connection.transport.get(), limits);
    int64_t warm_capacity_bytes = 0;
    for (int step = 0; step < 5; ++step) {
      for (const int64_t count : {10, 5000, 1000000}) {
        Elements data(DataType::kFloat32, count);
        ExpectOk(collectives.Allreduce(data.data(), count, {}));
        ExpectOk(collectives.Reduce(data.data(), data.data(), count, {}, 0));
      }
      if (step == 0) warm_capacity_bytes = collectives.scratch_capacity_bytes();
      EXPECT_EQ(collectives.scratch_capacity_bytes(), warm_capacity_bytes);
    }
    EXPECT_GT(warm_capacity_bytes, 0);
    EXPECT_LE(warm_capacity_bytes, limits.scratch_bytes * 3 / 2 + 2 * 4096);
  });
}

TEST(RankOrderedCollectives, SupportsHostMemoryAndMeaningfulReductions) {
  const RankOrderedCollectives collectives(nullptr);
  BatchTraits traits{.op = OpKind::kAllreduce,
                     .dtype = DataType::kFloat32,
                     .reduce_op = ReduceOp::kSum,
                     .device = -1,
                     .bytes = 4};
  EXPECT_TRUE(collectives.Supports(traits));
  traits.device = 0;
  EXPECT_FALSE(collectives.Supports(traits));
  traits.device = -1;
  traits.dtype = DataType::kComplex64;
  traits.reduce_op = ReduceOp::kMax;
  EXPECT_FALSE(collectives.Supports(traits));
  traits.op = OpKind::kAllgather;
  EXPECT_TRUE(collectives.Supports(traits));
  traits = {OpKind::kAllreduce, DataType::kFloat32, ReduceOp::kAdasum, -1, 4};
  EXPECT_TRUE(collectives.Supports(traits));
  traits.op = OpKind::kReducescatter;
  EXPECT_FALSE(collectives.Supports(traits));
}

}  // namespace
}  // namespace mydist
