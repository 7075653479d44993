// Gloo between processes: the conformance suites, and survivors of a killed rank.
#include <gtest/gtest.h>
#include <signal.h>

#include "conformance/sanitizers.h"
#include "transport/gloo/process_jobs.h"

namespace mydist {
namespace {

constexpr int kBootstrapRounds = 3;

void Bootstrap(ProcessJob& job) {
  for (int round = 0; round < kBootstrapRounds; ++round) job.ServeRound();
}

TEST(GlooProcesses, PassTheConformanceSuites) {
  ProcessJob job("conform", 3);
  Bootstrap(job);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(job.Wait(rank), 0) << "rank " << rank;
}

// Else those that have it would wait for the one that has not.
TEST(GlooStart, WhereOneRankHasNoneAllHearOfIt) {
  if (kIsSanitized) GTEST_SKIP() << "the sanitizers need descriptors while a rank has none";
  ProcessJob job("start_without_gloo", 3);
  for (int round = 0; round < 2; ++round) job.ServeRound();  // Hellos, and who has Gloo.
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(job.Wait(rank), 0) << "rank " << rank;
}

class GlooKilledRank : public ::testing::TestWithParam<const char*> {};

// The product's bound is a second. Here the way to this process counts as well, on a machine that
// may be busy; who is not told waits for half a minute (idle_loss) or for ever.
TEST_P(GlooKilledRank, IsReportedByEverySurvivorWithinSeconds) {
  constexpr int kSize = 4;
  ProcessJob job(GetParam(), kSize);
  Bootstrap(job);
  for (int rank = 0; rank < kSize; ++rank) job.ReadFrom(rank);  // All are idle or about to be.
  const TimePoint killed = Now();
  job.Kill(kSize - 1, SIGKILL);
  for (int rank = 0; rank < kSize - 1; ++rank) job.ReadFrom(rank);
  EXPECT_LT(Now() - killed, std::chrono::seconds(5));
  EXPECT_EQ(job.Wait(kSize - 1), -SIGKILL);
  for (int rank = 0; rank < kSize - 1; ++rank) EXPECT_EQ(job.Wait(rank), 0) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(WhileDoing, GlooKilledRank,
                         ::testing::Values("idle_loss", "transfer_loss"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace mydist
