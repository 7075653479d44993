#include "transport/factory.h"

#include <gtest/gtest.h>

#include <string>

#include "conformance/deep.h"
#include "conformance/on_every_rank.h"

namespace mydist {
namespace {

using testing::OnEveryRank;

class LoopbackSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LoopbackSizes, ::testing::ValuesIn(Ranks(2)));

TEST_P(LoopbackSizes, ExchangeGathersBlobsRoundByRound) {
  OnEveryRank(GetParam(), [](Connection& connection) {
    for (uint8_t round = 0; round < 20; ++round) {
      const Bytes mine(static_cast<size_t>(connection.rank), round);
      const Result<std::vector<Bytes>> all = connection.exchange(mine);
      EXPECT_TRUE(all.ok()) << all.status().ToString();
      if (!all.ok()) return;
      EXPECT_EQ(all->size(), static_cast<size_t>(connection.size));
      for (size_t rank = 0; rank < all->size(); ++rank) {
        EXPECT_EQ((*all)[rank], Bytes(rank, round));
      }
    }
  });
}

TEST(Loopback, OtherRanksStillExchangeAfterALoss) {
  std::vector<Connection> ranks = ConnectLoopback(3);
  ranks[2].control.reset();
  Bytes sent{1, 2, 3};
  Bytes got(3);
  const SendTransfer send{1, sent.data(), 3};
  const ReceiveTransfer receive{0, got.data(), 3};
  std::thread sender([&] { EXPECT_TRUE(ranks[0].transport->Exchange({&send, 1}, {}).ok()); });
  EXPECT_TRUE(ranks[1].transport->Exchange({}, {&receive, 1}).ok());
  sender.join();
  EXPECT_EQ(got, sent);
}

TEST(Loopback, DifferentSizesAreAnErrorNamingBoth) {
  OnEveryRank(2, [](Connection& connection) {
    Bytes data(100);
    if (connection.rank == 0) {
      const SendTransfer send{1, data.data(), 10};
      EXPECT_EQ(connection.transport->Exchange({&send, 1}, {}).code(), StatusCode::kPeerLost);
    } else {
      const ReceiveTransfer receive{0, data.data(), 20};
      const Status status = connection.transport->Exchange({}, {&receive, 1});
      EXPECT_EQ(status.code(), StatusCode::kInternal);
      EXPECT_NE(status.message().find("rank 0 sends 10 bytes, expected 20"), std::string::npos);
      connection.control.reset();
    }
  });
}

TEST(Loopback, LosingARankEndsTheBootstrapExchange) {
  OnEveryRank(3, [](Connection& connection) {
    if (connection.rank == 1) {
      connection.control.reset();
      return;
    }
    const auto all = connection.exchange({1});
    EXPECT_EQ(all.status().code(), StatusCode::kPeerLost);
  });
}

}  // namespace
}  // namespace mydist
