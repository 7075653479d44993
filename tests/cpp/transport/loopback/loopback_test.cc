#include "transport/factory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"
#include "conformance/on_every_rank.h"
#include "conformance/receive_by.h"
#include "conformance/transport_suite.h"

namespace mydist {
namespace {

using testing::OnEveryRank;

class LoopbackSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LoopbackSizes, ::testing::ValuesIn(Ranks(2)));

TEST_P(LoopbackSizes, TransportConforms) {
  OnEveryRank(GetParam(), [](Connection& connection) {
    testing::RunTransportConformance(*connection.transport);
  });
}

TEST_P(LoopbackSizes, EveryCollectiveConforms) {
  OnEveryRank(GetParam(),
              [](Connection& connection) { testing::RunEveryCollective(*connection.transport); });
}

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

TEST(Loopback, SizeOneHasNobodyToTalkTo) {
  std::vector<Connection> connections = ConnectLoopback(1);
  ASSERT_EQ(connections.size(), 1u);
  EXPECT_EQ(connections[0].size, 1);
  EXPECT_EQ(connections[0].control, nullptr);
  EXPECT_EQ(connections[0].transport, nullptr);
}

TEST(Loopback, DeliversControlMessagesInOrder) {
  OnEveryRank(3, [](Connection& connection) {
    constexpr uint8_t kMessageCount = 100;
    for (uint8_t i = 0; i < kMessageCount; ++i) {
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == connection.rank) continue;
        EXPECT_TRUE(connection.control->Send(peer, {i}).ok());
      }
    }
    uint8_t next[3] = {0, 0, 0};
    for (int i = 0; i < 2 * kMessageCount; ++i) {
      auto received = conformance::ReceiveBy(*connection.control, kNever);
      EXPECT_TRUE(received.ok() && received->has_value());
      if (!received.ok() || !received->has_value()) return;
      EXPECT_EQ((*received)->payload, Bytes{next[(*received)->source]++});
    }
  });
}

TEST(Loopback, AwaitReturnsAtItsDeadline) {
  std::vector<Connection> ranks = ConnectLoopback(2);
  const TimePoint start = Now();
  ranks[0].control->Await(start - std::chrono::seconds(1));
  const TimePoint deadline = start + std::chrono::milliseconds(5);
  ranks[0].control->Await(deadline);
  EXPECT_GE(Now(), deadline);
  EXPECT_FALSE(ranks[0].control->Receive().value().has_value());
}

TEST(Loopback, WakeBeforeAwaitIsNotLost) {
  std::vector<Connection> ranks = ConnectLoopback(2);
  ranks[0].control->Wake();
  ranks[0].control->Await(kNever);
  EXPECT_FALSE(ranks[0].control->Receive().value().has_value());
}

TEST(Loopback, WakeFromAnotherThreadInterruptsAwait) {
  std::vector<Connection> ranks = ConnectLoopback(2);
  std::thread waker([&] { ranks[0].control->Wake(); });
  ranks[0].control->Await(kNever);
  EXPECT_FALSE(ranks[0].control->Receive().value().has_value());
  waker.join();
}

TEST(Loopback, MessagesComeBeforeTheLossAndTheLossOnce) {
  std::vector<Connection> ranks = ConnectLoopback(3);
  ASSERT_TRUE(ranks[1].control->Send(0, {42}).ok());
  ranks[1].control.reset();
  EXPECT_EQ(ranks[0].control->Receive().value()->payload, Bytes{42});
  const auto lost = ranks[0].control->Receive();
  EXPECT_EQ(lost.status().code(), StatusCode::kPeerLost);
  EXPECT_NE(lost.status().message().find("rank 1 is gone"), std::string::npos);
  EXPECT_FALSE(ranks[0].control->Receive().value().has_value());
  EXPECT_EQ(ranks[2].control->Receive().status().code(), StatusCode::kPeerLost);
  EXPECT_EQ(ranks[0].control->Send(1, {1}).code(), StatusCode::kPeerLost);
  EXPECT_EQ(ranks[0].control->CheckPeer(1).code(), StatusCode::kPeerLost);
  EXPECT_TRUE(ranks[0].control->CheckPeer(2).ok());
}

TEST(Loopback, OrderlyCloseIsNoticedOnlyByUsingThePeer) {
  std::vector<Connection> ranks = ConnectLoopback(2);
  ASSERT_TRUE(ranks[1].control->Send(0, {7}).ok());
  ASSERT_TRUE(ranks[1].control->Close(kNever).ok());
  ranks[1].control.reset();
  EXPECT_EQ(ranks[0].control->Receive().value()->payload, Bytes{7});
  EXPECT_FALSE(ranks[0].control->Receive().value().has_value());
  const Status status = ranks[0].control->Send(1, {1});
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_NE(status.message().find("rank 1 has left"), std::string::npos);
  EXPECT_EQ(ranks[0].control->CheckPeer(1).ToString(), status.ToString());
}

TEST(Loopback, LosingARankEndsAnExchangeThatNeedsIt) {
  OnEveryRank(3, [](Connection& connection) {
    if (connection.rank == 2) {
      connection.control.reset();
      return;
    }
    Bytes data(1000);
    const ReceiveTransfer receive{2, data.data(), 1000};
    const SendTransfer send{2, data.data(), 1000};
    const Status status = connection.rank == 0 ? connection.transport->Exchange({}, {&receive, 1})
                                               : connection.transport->Exchange({&send, 1}, {});
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.message();
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
