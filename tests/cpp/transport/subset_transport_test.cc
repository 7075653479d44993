#include "transport/subset_transport.h"

#include <gtest/gtest.h>

#include "conformance/every_collective_suite.h"
#include "conformance/on_every_rank.h"

namespace mydist {
namespace {

using testing::OnEveryRank;

// {0, 2} and {1, 3}: the same operations in opposite order, at the same time.
TEST(SubsetTransport, SetsWorkSideBySideInOppositeOrder) {
  OnEveryRank(4, [](Connection& connection) {
    const bool even = connection.rank % 2 == 0;
    SubsetTransport subset(connection.transport.get(),
                           even ? std::vector{0, 2} : std::vector{1, 3});
    RankOrderedCollectives collectives(&subset);
    const testing::Rank me{subset.rank(), subset.size(), &collectives};
    if (even) testing::CheckReducingCollectives(me, DataType::kFloat32);
    testing::CheckMovingCollectives(me);
    testing::CheckMovingRooted(me);
    testing::RunAdasumConformance(me, DataType::kBfloat16);
    if (!even) testing::CheckReducingCollectives(me, DataType::kFloat32);
  });
}

// A barrier of the even ranks returns although the odd ones never call anything.
TEST(SubsetTransport, DoesNotNeedTheOthers) {
  OnEveryRank(5, [](Connection& connection) {
    if (connection.rank % 2 != 0) return;
    SubsetTransport subset(connection.transport.get(), {0, 2, 4});
    RankOrderedCollectives collectives(&subset);
    for (int i = 0; i < 100; ++i) ExpectOk(collectives.Barrier());
  });
}

// The same ranks in several sets and in the whole job, one after the other.
TEST(SubsetTransport, SetsMayOverlap) {
  OnEveryRank(3, [](Connection& connection) {
    Transport* whole = connection.transport.get();
    for (int round = 0; round < 20; ++round) {
      for (const std::vector<int>& ranks : {std::vector{0, 1}, std::vector{1, 2}}) {
        if (!testing::Contains(ranks, connection.rank)) continue;
        SubsetTransport subset(whole, ranks);
        RankOrderedCollectives collectives(&subset);
        std::vector<float> data = {1.0f, static_cast<float>(connection.rank)};
        ExpectOk(collectives.Allreduce(data.data(), 2, {}));
        EXPECT_EQ(data, (std::vector<float>{2.0f, static_cast<float>(ranks[0] + ranks[1])}));
      }
      RankOrderedCollectives collectives(whole);
      float sum = 1;
      ExpectOk(collectives.Allreduce(&sum, 1, {}));
      EXPECT_EQ(sum, 3.0f);
    }
  });
}

TEST(SubsetTransport, ErrorsNameTheRankInTheJob) {
  OnEveryRank(4, [](Connection& connection) {
    if (connection.rank == 3) connection.control.reset();
    if (connection.rank != 1) return;
    SubsetTransport subset(connection.transport.get(), {1, 3});
    RankOrderedCollectives collectives(&subset);
    uint8_t byte = 0;
    const Status status = collectives.Receive(&byte, 1, 1);
    ExpectError(status, StatusCode::kPeerLost, {"rank 3"});
  });
}

TEST(SubsetTransportDeathTest, RefusesRanksThatAreNoSet) {
  std::vector<Connection> connections = ConnectLoopback(2);
  Transport* transport = connections[0].transport.get();
  EXPECT_DEATH(SubsetTransport(transport, {1}), "");
  EXPECT_DEATH(SubsetTransport(transport, {0, 0}), "");
}

}  // namespace
}  // namespace mydist
