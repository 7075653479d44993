// The MPI plugin against the conformance suites; each rank is one process of mpirun. The size of
// the job comes from the launcher's environment, as in a user's program.
#include <gmock/gmock.h>
#include <mpi.h>

#include <algorithm>
#include <cstdlib>

#include "conformance/control_plane_suite.h"
#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"
#include "conformance/large_transfer.h"
#include "conformance/soon.h"
#include "conformance/transport_suite.h"
#include "job/build_report.h"
#include "transport/plugin_function.h"
#include "transport/registry.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;

int FromLauncher(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? -1 : std::atoi(value);
}

int LaunchedRank() { return FromLauncher("OMPI_COMM_WORLD_RANK"); }
int LaunchedSize() { return FromLauncher("OMPI_COMM_WORLD_SIZE"); }

Result<Connection> ConnectMpi(int rank, int size) {
  const Result<BackendPlugin*> plugin = LoadPlugin("mpi");
  if (!plugin.ok()) return plugin.status();
  const Config config;
  BackendOptions options;
  options.rank = rank;
  options.size = size;
  options.config = &config;
  return plugin.value()->Connect(options);
}

TEST(MpiReport, DoesNotInitialiseMpi) {
  for (const BackendReport& row : ReportBackends({})) {
    if (row.name != "mpi") continue;
    EXPECT_TRUE(row.available) << row.reason;
    EXPECT_THAT(row.description, HasSubstr("MPI"));
  }
  // Only as long as no other test ran before; a filter that reorders would break this, not users.
  int initialized = 1;
  MPI_Initialized(&initialized);
  EXPECT_EQ(initialized, 0);
}

TEST(MpiConnect, ASizeThatDiffersNamesBothAndTheCause) {
  // Starts MPI, which takes its time.
  ASSERT_FALSE(ConnectMpi(LaunchedRank(), LaunchedSize() + 1).ok());
  const EndsSoon ends_soon;
  const Result<Connection> connection = ConnectMpi(LaunchedRank(), LaunchedSize() + 1);
  ASSERT_FALSE(connection.ok());
  EXPECT_EQ(connection.status().code(), StatusCode::kInvalidArgument);
  const std::string rank = std::to_string(LaunchedRank());
  EXPECT_THAT(connection.status().message(),
              HasSubstr("the launcher says this is rank " + rank + " of " +
                        std::to_string(LaunchedSize() + 1) + ", MPI says it is rank " + rank +
                        " of " + std::to_string(LaunchedSize())));
}

TEST(MpiConnect, ARankThatDiffersIsRefused) {
  const int other = (LaunchedRank() + 1) % LaunchedSize();
  ExpectError(ConnectMpi(other, LaunchedSize()).status(), StatusCode::kInvalidArgument,
              {"the launcher says this is rank " + std::to_string(other) + " of ",
               "MPI says it is rank " + std::to_string(LaunchedRank()) + " of "});
}

TEST(MpiConformance, ControlPlane) {
  Result<Connection> connection = ConnectMpi(LaunchedRank(), LaunchedSize());
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  EXPECT_EQ(connection->rank, LaunchedRank());
  EXPECT_EQ(connection->size, LaunchedSize());
  conformance::RunControlPlaneConformance(*connection);
  conformance::ClosesInOrder(*connection);
}

TEST(MpiConformance, Transport) {
  Result<Connection> connection = ConnectMpi(-1, 0);  // As MPI says.
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  testing::RunTransportConformance(*connection->transport);
  EXPECT_TRUE(connection->control->Close(conformance::Soon()).ok());
}

TEST(MpiConformance, EveryCollective) {
  Result<Connection> connection = ConnectMpi(-1, 0);
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  testing::RunEveryCollective(*connection->transport);
  EXPECT_TRUE(connection->control->Close(conformance::Soon()).ok());
}

TEST(MpiLargeTransfer, GoesInPieces) {
  const Result<BackendPlugin*> plugin = LoadPlugin("mpi");
  ASSERT_TRUE(plugin.ok());
  auto set_chunk_bytes =
      PluginFunction<void (*)(int64_t)>(plugin.value(), "mydist_mpi_set_chunk_bytes");
  ASSERT_NE(set_chunk_bytes, nullptr);
  Result<Connection> connection = ConnectMpi(-1, 0);
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  set_chunk_bytes(1000);
  conformance::DeliversInPieces(*connection->transport, 1000);
  set_chunk_bytes(int64_t{1} << 30);
  // Around where pieces begin and end by themselves.
  for (const int64_t bytes : {65'024, 130'048, 260'096}) {
    conformance::DeliversInPieces(*connection->transport, bytes);
  }
  EXPECT_TRUE(connection->control->Close(conformance::Soon()).ok());
}

TEST(MpiLargeTransfer, Beyond32Bits) {
  if (!IsDeep()) GTEST_SKIP() << "runs in make deep";
  Result<Connection> connection = ConnectMpi(-1, 0);
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  // All ranks must decide alike: one that lacks memory speaks for all.
  const auto votes = connection->exchange({conformance::HasMemoryForLargeTransfer(2)});
  ASSERT_TRUE(votes.ok()) << votes.status().ToString();
  bool all_have_memory = true;
  for (const Bytes& vote : *votes) all_have_memory = all_have_memory && vote == Bytes{1};
  if (all_have_memory) conformance::DeliversBeyond32Bits(*connection->transport);
  EXPECT_TRUE(connection->control->Close(conformance::Soon()).ok());
  if (!all_have_memory) GTEST_SKIP() << "needs 7 GiB of free memory";
}

TEST(MpiConformance, Exchange) {
  Result<Connection> connection = ConnectMpi(-1, 0);
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  // Blobs of different lengths, one of them empty.
  const Bytes mine(static_cast<size_t>(connection->rank), static_cast<uint8_t>(connection->rank));
  const auto all = connection->exchange(mine);
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  ASSERT_EQ(static_cast<int>(all->size()), connection->size);
  for (size_t rank = 0; rank < all->size(); ++rank) {
    EXPECT_EQ((*all)[rank], Bytes(rank, static_cast<uint8_t>(rank)));
  }
  EXPECT_TRUE(connection->control->Close(conformance::Soon()).ok());
}

TEST(MpiConformance, ASendToARankThatHasClosedIsALoss) {
  Result<Connection> connection = ConnectMpi(-1, 0);
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  conformance::Correspondent me(*connection);
  me.Synchronize();
  if (me.rank() == 0) {
    // Rank 0 stays until it has seen that rank 1's goodbye is not a loss, but its end.
    Status sent;
    for (const TimePoint limit = conformance::Soon(); sent.ok() && Now() < limit;) {
      conformance::ExpectNothing(
          conformance::ReceiveBy(me.plane(), Now() + std::chrono::milliseconds(1)));
      sent = me.plane().Send(1, {1});
    }
    ExpectError(sent, StatusCode::kPeerLost, {"rank 1"});
    EXPECT_EQ(me.plane().CheckPeer(1).ToString(), sent.ToString());
  }
  EXPECT_TRUE(me.plane().Close(conformance::Soon()).ok());
}

// What the others of `connection` take of a rank 1 that sends a byte, and then leaves instead of
// sending another. As when a rank's engine fails before its part of a collective. How long it took.
Duration LoseRank1(Connection& connection) {
  conformance::Correspondent me(connection);
  me.Synchronize();
  me.plane().SetFarewell("the disk is full" + std::string(2 * kMaxFarewellBytes, '!'));
  uint8_t byte = 0;
  const TimePoint begin = Now();
  for (int peer = 0; me.rank() == 1 && peer < LaunchedSize(); ++peer) {
    const SendTransfer send{peer, &byte, 1};
    if (peer != 1) EXPECT_TRUE(me.transport().Exchange({&send, 1}, {}).ok());
  }
  if (me.rank() != 1) {
    const ReceiveTransfer receive{1, &byte, 1};
    EXPECT_TRUE(me.transport().Exchange({}, {&receive, 1}).ok());
    const Status status = me.transport().Exchange({}, {&receive, 1});
    ExpectError(status, StatusCode::kPeerLost,
                {"rank 1 (host ", ") has left the job: the disk is full!"});
    EXPECT_EQ(status.cause(), status.message());
  }
  const Duration took = Now() - begin;
  EXPECT_TRUE(me.plane().Close(conformance::Soon()).ok());
  return took;
}

// The others must not wait for it, nor for what it might have sent: 0.5 s. A machine may be busy.
TEST(MpiConformance, ATransferWithARankThatHasClosedIsALossAtOnce) {
  Duration least = Duration::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    Result<Connection> connection = ConnectMpi(-1, 0);
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    least = std::min(least, LoseRank1(*connection));
  }
  EXPECT_LT(least, std::chrono::milliseconds(250));
}

TEST(MpiCycles, ConnectsAndClosesAgainAndAgain) {
  for (int cycle = 0; cycle < 200; ++cycle) {
    Result<Connection> connection = ConnectMpi(-1, 0);
    ASSERT_TRUE(connection.ok()) << cycle << ": " << connection.status().ToString();
    conformance::Correspondent me(*connection);
    me.Synchronize();
    ASSERT_TRUE(me.plane().Close(conformance::Soon()).ok()) << cycle;
  }
}

}  // namespace
}  // namespace mydist
