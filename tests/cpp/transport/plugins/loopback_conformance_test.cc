// The loopback backend against the conformance suite, ranks as threads.
#include "conformance/control_plane_suite.h"
#include "transport/rank_threads.h"

namespace mydist {
namespace {

class LoopbackConformance : public ::testing::TestWithParam<int> {};

TEST_P(LoopbackConformance, ControlPlane) {
  std::vector<Connection> connections = ConnectLoopback(GetParam());
  RunAsRanks(GetParam(), [&](int rank) {
    Connection& mine = connections[static_cast<size_t>(rank)];
    conformance::RunControlPlaneConformance(mine);
    conformance::ClosesInOrder(mine);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, LoopbackConformance, ::testing::Values(2, 3, 4));

TEST(LoopbackPeerLoss, ADestroyedRankIsReportedOnceWithItsName) {
  std::vector<Connection> connections = ConnectLoopback(3);
  ASSERT_TRUE(connections[2].control->Send(0, {42}).ok());
  connections[2] = Connection{};
  ControlPlane& plane = *connections[0].control;
  const auto before = conformance::ReceiveBy(plane, conformance::Soon());
  ASSERT_TRUE(before.ok());
  ASSERT_TRUE(before->has_value());
  EXPECT_EQ((*before)->payload, Bytes{42});
  const auto lost = conformance::ReceiveBy(plane, conformance::Soon());
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.status().code(), StatusCode::kPeerLost);
  EXPECT_NE(lost.status().message().find("rank 2"), std::string::npos) << lost.status().message();
  conformance::ExpectNothing(plane.Receive());
  EXPECT_EQ(plane.Send(2, {1}).code(), StatusCode::kPeerLost);
}

TEST(LoopbackCycles, ConnectsAndClosesAgainAndAgain) {
  for (int cycle = 0; cycle < 200; ++cycle) {
    std::vector<Connection> connections = ConnectLoopback(3);
    RunAsRanks(3, [&](int rank) {
      conformance::Correspondent me(connections[static_cast<size_t>(rank)]);
      me.Synchronize();
      EXPECT_TRUE(me.plane().Close(conformance::Soon()).ok());
    });
    ASSERT_FALSE(::testing::Test::HasFailure()) << "cycle " << cycle;
  }
}

}  // namespace
}  // namespace mydist
