// The rooted collectives and adaptive summation over loopback, with all their algorithms.
#include "conformance/rooted_suite.h"

#include <gtest/gtest.h>

#include "algorithms/counting_transport.h"
#include "algorithms/rank_ordered_collectives.h"
#include "conformance/deep.h"
#include "conformance/on_every_rank.h"

namespace mydist {
namespace {

using testing::CountingTransport;
using testing::Elements;
using testing::ExpectOk;
using testing::OnEveryRank;
using testing::Rank;

// Many rounds even for small tensors.
constexpr RankOrderedLimits kTinyPieces{
    .one_shot_bytes = 0, .scratch_bytes = 512, .minimum_round_bytes = 128};

class RootedCollectives : public ::testing::TestWithParam<int> {
 protected:
  void OnEveryCollectives(const RankOrderedLimits& limits,
                          const std::function<void(const Rank&)>& body) {
    OnEveryRank(GetParam(), [&](Connection& connection) {
      RankOrderedCollectives collectives(connection.transport.get(), limits);
      body({connection.rank, connection.size, &collectives});
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, RootedCollectives, ::testing::ValuesIn(Ranks(1)));

TEST_P(RootedCollectives, MoveBytes) { OnEveryCollectives({}, testing::CheckMovingRooted); }

TEST_P(RootedCollectives, ReduceAllTypes) {
  OnEveryCollectives({}, [](const Rank& me) {
    for (const DataType dtype : testing::kAllDataTypes) testing::CheckReducingRooted(me, dtype);
  });
}

TEST_P(RootedCollectives, ReduceInManyRounds) {
  OnEveryCollectives(kTinyPieces, [](const Rank& me) {
    for (const DataType dtype : {DataType::kUint8, DataType::kBfloat16, DataType::kFloat64}) {
      for (const int64_t count : {1, 63, 5003}) testing::CheckReduce(me, dtype, count);
    }
  });
}

TEST(RootedTraffic, ReduceSendsTheRootNoMoreThanItNeeds) {
  OnEveryRank(4, [](Connection& connection) {
    CountingTransport transport(*connection.transport);
    RankOrderedCollectives collectives(&transport);
    const int64_t count = 1000003;
    const Elements input(DataType::kFloat32, count);
    Elements output(DataType::kFloat32, connection.rank == 2 ? count : 0);
    ExpectOk(collectives.Reduce(input.data(), output.data(), count, {}, 2));
    // Three quarters to the other owners of slices, and its own quarter to the root.
    const double share = connection.rank == 2 ? 0.75 : 1.0;
    EXPECT_NEAR(static_cast<double>(transport.sent_bytes()), share * 4 * count, 4 * 64);
  });
}

TEST(RootedTraffic, SmallReduceIsOneMessageEach) {
  OnEveryRank(4, [](Connection& connection) {
    CountingTransport transport(*connection.transport);
    RankOrderedCollectives collectives(&transport);
    Elements data(DataType::kFloat32, 16);
    ExpectOk(collectives.Reduce(data.data(), data.data(), 16, {}, 0));
    EXPECT_EQ(transport.exchange_count(), 1);
    EXPECT_EQ(transport.message_count(), connection.rank == 0 ? 0 : 1);
  });
}

TEST(RootedTraffic, EmptyTensorsSendNothing) {
  OnEveryRank(3, [](Connection& connection) {
    CountingTransport transport(*connection.transport);
    RankOrderedCollectives collectives(&transport);
    const std::vector<int64_t> none(3, 0);
    ExpectOk(collectives.Reduce(nullptr, nullptr, 0, {}, 1));
    ExpectOk(collectives.Gather(nullptr, nullptr, none, 1));
    ExpectOk(collectives.Scatter(nullptr, none, nullptr, 1));
    if (connection.rank == 0) ExpectOk(collectives.Send(nullptr, 0, 1));
    if (connection.rank == 1) ExpectOk(collectives.Receive(nullptr, 0, 0));
    ExpectOk(collectives.AdasumAllreduce(nullptr, none, {.op = ReduceOp::kAdasum}));
    EXPECT_EQ(transport.exchange_count(), 0);
  });
}

TEST(RootedTraffic, ReduceKeepsItsScratchMemoryBounded) {
  OnEveryRank(3, [](Connection& connection) {
    const RankOrderedLimits limits{.scratch_bytes = int64_t{256} << 10};
    RankOrderedCollectives collectives(connection.transport.get(), limits);
    Elements data(DataType::kFloat32, 1000000);
    ExpectOk(collectives.Reduce(data.data(), data.data(), data.count(), {}, 0));
    const int64_t warm_capacity_bytes = collectives.scratch_capacity_bytes();
    ExpectOk(collectives.Reduce(data.data(), data.data(), data.count(), {}, 0));
    EXPECT_EQ(collectives.scratch_capacity_bytes(), warm_capacity_bytes);
    EXPECT_LE(warm_capacity_bytes, limits.scratch_bytes * 3 / 2 + 2 * 4096);
  });
}

}  // namespace
}  // namespace mydist
