// How mydist finds MPI when the program has used it first. MPI starts once per process, so each
// case is a process of its own: test_mpi_start CASE, under mpirun. Exits non-zero when the case
// fails.
#include <gtest/gtest.h>
#include <mpi.h>

#include <iostream>
#include <map>
#include <string>

#include "conformance/receive_by.h"
#include "conformance/soon.h"
#include "conformance/status_checks.h"
#include "transport/factory.h"
#include "transport/registry.h"

namespace mydist {
namespace {

Result<Connection> ConnectMpi(const Config& config = {}) {
  const Result<BackendPlugin*> plugin = LoadPlugin("mpi");
  if (!plugin.ok()) return plugin.status();
  BackendOptions options;
  options.rank = -1;
  options.size = 0;
  options.config = &config;
  return plugin.value()->Connect(options);
}

void StartMpi(int level) {
  int provided = -1;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, level, &provided), MPI_SUCCESS);
  ASSERT_EQ(provided, level);
}

void ExpectInternal(const Result<Connection>& connection, const std::string& text) {
  ExpectError(connection.status(), StatusCode::kInternal, {text});
}

// The program's MPI is used, and is left running for the program to end.
void Reused() {
  StartMpi(MPI_THREAD_MULTIPLE);
  {
    Result<Connection> connection = ConnectMpi();
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    int world_rank = -1;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    EXPECT_EQ(connection->rank, world_rank);
    EXPECT_TRUE(connection->control->Close(Now() + std::chrono::seconds(30)).ok());
  }
  int finalized = 1;
  MPI_Finalized(&finalized);
  EXPECT_EQ(finalized, 0);
  int sum = 0;
  const int one = 1;
  EXPECT_EQ(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD), MPI_SUCCESS);
  EXPECT_EQ(sum, 2);
  MPI_Finalize();
}

void LowThreadLevel() {
  StartMpi(MPI_THREAD_FUNNELED);
  {
    const EndsSoon ends_soon;
    ExpectInternal(
        ConnectMpi(),
        "this MPI library provides MPI_THREAD_FUNNELED, mydist needs MPI_THREAD_MULTIPLE. The "
        "program initialised MPI itself: let it request MPI_THREAD_MULTIPLE");
  }
  MPI_Finalize();
}

void Finalized() {
  StartMpi(MPI_THREAD_MULTIPLE);
  MPI_Finalize();
  ExpectInternal(ConnectMpi(), "MPI has been finalized");
}

// A rank that leaves without closing must not wait in MPI_Finalize for peers that never come: its
// exit ends, and mpirun ends the others.
void LeftOpen() {
  Result<Connection> connection = ConnectMpi();
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  if (connection->rank == 0) {
    const auto got =
        conformance::ReceiveBy(*connection->control, kNever);  // Until mpirun kills us.
    ADD_FAILURE() << "got " << got.ok();
  }
}

// A rank that stops between its connection and the exchange of its facts keeps no other waiting.
void ExchangeWithoutAPeer() {
  Config config;
  config.connect_timeout = std::chrono::seconds(2);
  StartMpi(MPI_THREAD_MULTIPLE);  // May take longer.
  Result<Connection> connection = ConnectMpi(config);
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  if (connection->rank == 1) {
    MPI_Recv(nullptr, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return;
  }
  const Status status = connection->exchange(Bytes()).status();
  std::cout << "the exchange has ended with " << status.ToString() << std::endl;
  MPI_Send(nullptr, 0, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
}

}  // namespace
}  // namespace mydist

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::map<std::string, void (*)()> cases = {
      {"reused", &mydist::Reused},
      {"low_thread_level", &mydist::LowThreadLevel},
      {"finalized", &mydist::Finalized},
      {"left_open", &mydist::LeftOpen},
      {"exchange_without_a_peer", &mydist::ExchangeWithoutAPeer}};
  if (argc != 2 || !cases.contains(argv[1])) return 2;
  cases.at(argv[1])();
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}
