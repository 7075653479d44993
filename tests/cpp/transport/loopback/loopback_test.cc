#include "transport/factory.h"

#include <gtest/gtest.h>

#include "conformance/on_every_rank.h"
#include "conformance/status_checks.h"

namespace mydist {
namespace {

using testing::OnEveryRank;
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
      ExpectError(status, StatusCode::kInternal, {"rank 0 sends 10 bytes, expected 20"});
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
