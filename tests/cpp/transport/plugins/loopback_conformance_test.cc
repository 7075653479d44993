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
  ExpectError(lost.status(), StatusCode::kPeerLost, {"rank 2"});
  conformance::ExpectNothing(plane.Receive());
  EXPECT_EQ(plane.Send(2, {1}).code(), StatusCode::kPeerLost);
}

}  // namespace
}  // namespace mydist
