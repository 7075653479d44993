#include <gtest/gtest.h>

#include "conformance/control_plane_suite.h"
#include "conformance/deep.h"
#include "conformance/held_by_process.h"
#include "conformance/transport_suite.h"
#include "transport/factory.h"
#include "transport/local/local_jobs.h"

namespace mydist::local {
namespace {

class LocalConformance : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, LocalConformance, ::testing::ValuesIn(Ranks(2, 4)));

TEST_P(LocalConformance, ControlPlaneOfThreads) {
  OnThreads(GetParam(), [](LocalRank& rank) {
    conformance::RunControlPlaneConformance(rank.connection);
    conformance::ClosesInOrder(rank.connection);
  });
}

TEST_P(LocalConformance, AllOfItBetweenProcesses) {
  const int size = GetParam();
  const shm::ShmDirectory directory;
  shm::ForkedRanks ranks(size, AsRank(size, directory, [](LocalRank& rank, const auto&) {
                           conformance::RunControlPlaneConformance(rank.connection);
                           testing::RunTransportConformance(*rank.connection.transport);
                           conformance::ClosesInOrder(rank.connection);
                         }));
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
  EXPECT_TRUE(directory.IsEmpty());
}

TEST(LocalCycles, ConnectsAndClosesAgainAndAgainWithoutLeaks) {
  const auto cycle = [] {
    OnThreads(2, [](LocalRank& rank) {
      conformance::Correspondent me(rank.connection);
      me.Send(1 - me.rank(), Bytes(200'000, 7));  // Longer than a ring: there is a courier.
      EXPECT_EQ(me.ReceiveFrom(1 - me.rank()).size(), 200'000U);
      ExpectOk(me.plane().Close(Soon()));
    });
  };
  cycle();
  const int64_t files = OpenFileCount();
  const int64_t threads = LivingThreadCount();
  for (int i = 0; i < 200; ++i) {
    cycle();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "cycle " << i;
  }
  EXPECT_EQ(OpenFileCount(), files);
  EXPECT_EQ(LivingThreadCount(), threads);
}

}  // namespace
}  // namespace mydist::local
