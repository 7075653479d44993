// Gloo between processes: the conformance suites, and survivors of a killed rank.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "conformance/control_plane_suite.h"
#include "conformance/sanitizers.h"
#include "conformance/transport_suite.h"
#include "job/job.h"
#include "memory/shm/forked_ranks.h"
#include "transport/gloo/gloo_jobs.h"

namespace mydist {
namespace {

using conformance::Correspondent;
using shm::ForkedRanks;

// What a process does as one rank of a job of `size`.
ForkedRanks::Body AsGlooRank(
    int size, const std::function<void(Connection&, const ForkedRanks::Seat&)>& body) {
  return [size, body](const ForkedRanks::Seat& seat) {
    Result<Connection> connection = ConnectGloo(seat.rank, size, seat.exchange, {});
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    body(*connection, seat);
  };
}

TEST(GlooProcesses, PassTheConformanceSuites) {
  ForkedRanks ranks(3, AsGlooRank(3, [](Connection& connection, const ForkedRanks::Seat&) {
                      conformance::RunControlPlaneConformance(connection);
                      testing::RunTransportConformance(*connection.transport);
                      conformance::ClosesInOrder(connection);
                    }));
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

// The last of three ranks cannot load Gloo, and remembers that.
void StartWithoutGloo(const ForkedRanks::Seat& seat) {
  setenv("MYDIST_SHARED_MEMORY", "0", 1);
  if (seat.rank == 2) {
    rlimit files{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
    const rlimit none{0, files.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    ASSERT_FALSE(LoadPlugin("gloo").ok());
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  }
  const Status status = process::Init({.rank = seat.rank, .size = 3, .exchange = seat.exchange});
  ExpectError(status, StatusCode::kInternal,
              {"and gloo is unavailable (rank 2 (host ", "cannot load it, other ranks can",
               "install the same build of mydist", "cannot be loaded"});
}

// Else those that have it would wait for the one that has not. In a process that has not loaded it.
TEST(GlooStart, WhereOneRankHasNoneAllHearOfIt) {
  if (kIsSanitized) GTEST_SKIP() << "the sanitizers need descriptors while a rank has none";
  ForkedRanks ranks(3, StartWithoutGloo);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

// What a survivor hears.
Status WhileIdle(Correspondent& me) {
  return conformance::ReceiveBy(me.plane(), conformance::Soon()).status();
}
Status WhileItTransfers(Correspondent& me) {  // In a ring.
  std::vector<uint8_t> memory(1 << 16);
  const ReceiveTransfer receive{(me.rank() + 1) % me.size(), memory.data(), 1 << 16};
  return me.transport().Exchange({}, {&receive, 1});
}

// The product's bound is a second. Here the ends of the processes count as well, on a machine that
// may be busy; who is not told waits for half a minute (WhileIdle) or for ever.
TEST(GlooKilledRank, IsReportedByEverySurvivorWithinSeconds) {
  constexpr int kSize = 4;
  for (const auto& wait : {&WhileIdle, &WhileItTransfers}) {
    ForkedRanks ranks(
        kSize, AsGlooRank(kSize, [&](Connection& connection, const ForkedRanks::Seat& seat) {
          Correspondent me(connection);
          me.Synchronize();
          seat.report();
          const std::string killed = "rank " + std::to_string(kSize - 1) + " (host ";
          ExpectError(wait(me), StatusCode::kPeerLost, {killed});
          // Or a slower survivor would hear of the end of this one first.
          ExpectError(me.plane().Close(conformance::Soon()), StatusCode::kPeerLost, {killed});
        }));
    ranks.AwaitReports(kSize);  // All are idle or about to be.
    const TimePoint killed = Now();
    ranks.Kill(kSize - 1);
    for (int rank = 0; rank < kSize - 1; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << rank;
    EXPECT_LT(Now() - killed, std::chrono::seconds(5));
  }
}

}  // namespace
}  // namespace mydist
