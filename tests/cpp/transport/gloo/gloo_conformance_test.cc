// The Gloo plugin against the conformance suites, ranks as threads: several Gloo contexts live in
// one process at once.
#include "conformance/control_plane_suite.h"
#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"
#include "conformance/held_by_process.h"
#include "conformance/large_transfer.h"
#include "conformance/transport_suite.h"
#include "transport/gloo/gloo_jobs.h"
#include "transport/plugin_function.h"

namespace mydist {
namespace {

class GlooConformance : public ::testing::TestWithParam<int> {};

TEST_P(GlooConformance, ControlPlane) {
  RunGlooJob(GetParam(), [](Connection& connection) {
    conformance::RunControlPlaneConformance(connection);
    conformance::ClosesInOrder(connection);
  });
}

TEST_P(GlooConformance, TransportAndEveryCollective) {
  RunGlooJob(GetParam(), [](Connection& connection) {
    testing::RunTransportConformance(*connection.transport);
    testing::RunEveryCollective(*connection.transport);
    EXPECT_TRUE(connection.control->Close(conformance::Soon()).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, GlooConformance, ::testing::Values(2, 3, 4));

TEST(GlooCycles, ConnectsAndClosesAgainAndAgainWithoutLeaks) {
  const auto cycle = [] {
    RunGlooJob(2, [](Connection& connection) {
      conformance::Correspondent me(connection);
      me.Synchronize();
      EXPECT_TRUE(me.plane().Close(conformance::Soon()).ok());
    });
  };
  cycle();
  const int64_t files = OpenFileCount();
  const int64_t threads = LivingThreadCount();
  for (int i = 0; i < InDeep(200, 40); ++i) {
    cycle();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "cycle " << i;
  }
  EXPECT_EQ(OpenFileCount(), files);
  EXPECT_EQ(LivingThreadCount(), threads);
}

TEST(GlooLargeTransfer, GoesInPieces) {
  BackendPlugin* plugin = GlooPluginForTest();
  ASSERT_NE(plugin, nullptr);
  auto set_chunk_bytes = PluginFunction<void (*)(int64_t)>(plugin, "mydist_gloo_set_chunk_bytes");
  ASSERT_NE(set_chunk_bytes, nullptr);
  set_chunk_bytes(1000);
  RunGlooJob(3, [](Connection& connection) {
    conformance::DeliversInPieces(*connection.transport, 1000);
    EXPECT_TRUE(connection.control->Close(conformance::Soon()).ok());
  });
  set_chunk_bytes(int64_t{1} << 30);
}

TEST(GlooLargeTransfer, Beyond32Bits) {
  if (!IsDeep()) GTEST_SKIP() << "runs in make deep";
  if (!conformance::HasMemoryForLargeTransfer(2)) GTEST_SKIP() << "needs 7 GiB of free memory";
  RunGlooJob(2, [](Connection& connection) {
    conformance::DeliversBeyond32Bits(*connection.transport);
    EXPECT_TRUE(connection.control->Close(conformance::Soon()).ok());
  });
}

}  // namespace
}  // namespace mydist
