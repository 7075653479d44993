#include "transport/gloo/process_jobs.h"
#include "transport/registry.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "conformance/control_plane_suite.h"
#include "conformance/transport_suite.h"
#include "job/job.h"
#include "transport/gloo/gloo_jobs.h"

extern char** environ;

namespace mydist {
namespace {

void WriteAll(int fd, const void* data, size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = send(fd, next, bytes, MSG_NOSIGNAL);
    ASSERT_GT(written, 0);
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void ReadAll(int fd, void* data, size_t bytes) {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = read(fd, next, bytes);
    ASSERT_GT(got, 0);
    next += got;
    bytes -= static_cast<size_t>(got);
  }
}

void WriteBlob(int fd, const Bytes& blob) {
  const uint64_t bytes = blob.size();
  WriteAll(fd, &bytes, sizeof(bytes));
  WriteAll(fd, blob.data(), blob.size());
}

Bytes ReadBlob(int fd) {
  uint64_t bytes = 0;
  ReadAll(fd, &bytes, sizeof(bytes));
  Bytes blob(bytes);
  ReadAll(fd, blob.data(), blob.size());
  return blob;
}

struct Seat {
  Connection connection;
  int socket;
  // Tells the test process that this rank has come so far.
  void Report() const { WriteBlob(socket, {1}); }
};

void Conform(Seat& seat) {
  conformance::RunControlPlaneConformance(seat.connection);
  testing::RunTransportConformance(*seat.connection.transport);
  conformance::ClosesInOrder(seat.connection);
}

void ExpectLossOfLastRank(const Status& status, const Connection& connection) {
  EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.ToString();
  const std::string name = "rank " + std::to_string(connection.size - 1) + " (host ";
  EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
}

// The last rank is killed from outside while all are idle.
void IdleLoss(Seat& seat) {
  conformance::Correspondent me(seat.connection);
  me.Synchronize();
  seat.Report();
  const auto lost = conformance::ReceiveBy(me.plane(), conformance::Soon());
  ASSERT_FALSE(lost.ok());
  ExpectLossOfLastRank(lost.status(), seat.connection);
  seat.Report();
}

// The last rank is killed from outside while all wait for tensors in a ring.
void TransferLoss(Seat& seat) {
  conformance::Correspondent me(seat.connection);
  me.Synchronize();
  seat.Report();
  std::vector<uint8_t> memory(1 << 16);
  const int next = (me.rank() + 1) % me.size();
  const ReceiveTransfer receive{next, memory.data(), 1 << 16};
  const Status status = me.transport().Exchange({}, {&receive, 1});
  ExpectLossOfLastRank(status, seat.connection);
  seat.Report();
}

// The last rank cannot load Gloo, and remembers that.
void StartWithoutGloo(int rank, int size, const BootstrapExchange& exchange) {
  setenv("MYDIST_SHARED_MEMORY", "0", 1);
  if (rank == size - 1) {
    rlimit files{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
    const rlimit none{0, files.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    ASSERT_FALSE(LoadPlugin("gloo").ok());
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  }
  const Status status = process::Init({.rank = rank, .size = size, .exchange = exchange});
  EXPECT_EQ(status.code(), StatusCode::kInternal) << status.ToString();
  for (const char* part :
       {"and gloo is unavailable (rank 2 (host ", "cannot load it, other ranks can",
        "install the same build of mydist", "cannot be loaded"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

int ExitCode() { return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0; }

}  // namespace

int RunScenario(const std::string& name, int rank, int size, int socket) {
  const std::map<std::string, void (*)(Seat&)> scenarios = {
      {"conform", &Conform}, {"idle_loss", &IdleLoss}, {"transfer_loss", &TransferLoss}};
  const BootstrapExchange exchange = [&](const Bytes& mine) -> Result<std::vector<Bytes>> {
    WriteBlob(socket, mine);
    std::vector<Bytes> all;
    for (int peer = 0; peer < size; ++peer) all.push_back(ReadBlob(socket));
    return all;
  };
  if (name == "start_without_gloo") {
    StartWithoutGloo(rank, size, exchange);
    return ExitCode();
  }
  const Config config;
  Result<Connection> connection = ConnectGloo(rank, size, exchange, config);
  EXPECT_TRUE(connection.ok()) << connection.status().ToString();
  if (!connection.ok()) return 2;
  Seat seat{std::move(connection).value(), socket};
  scenarios.at(name)(seat);
  return ExitCode();
}

ProcessJob::ProcessJob(const std::string& scenario, int size) {
  for (int rank = 0; rank < size; ++rank) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const std::string arguments[] = {"/proc/self/exe",     "--as-rank",          scenario,
                                     std::to_string(rank), std::to_string(size), "3"};
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // dup2 drops close-on-exec, also when source and target are the same number.
    posix_spawn_file_actions_adddup2(&actions, ends[1], 3);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    pids_.push_back(pid);
    sockets_.push_back(ends[0]);
  }
}

ProcessJob::~ProcessJob() {
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    if (pids_[rank] > 0) {
      kill(pids_[rank], SIGKILL);
      waitpid(pids_[rank], nullptr, 0);
    }
    close(sockets_[rank]);
  }
}

std::vector<Bytes> ProcessJob::ServeRound() {
  std::vector<Bytes> blobs;
  for (const int fd : sockets_) blobs.push_back(ReadBlob(fd));
  for (const int fd : sockets_) {
    for (const Bytes& blob : blobs) WriteBlob(fd, blob);
  }
  return blobs;
}

Bytes ProcessJob::ReadFrom(int rank) { return ReadBlob(sockets_[static_cast<size_t>(rank)]); }

void ProcessJob::Kill(int rank, int signal) {
  ASSERT_EQ(kill(pids_[static_cast<size_t>(rank)], signal), 0);
}

int ProcessJob::Wait(int rank) {
  pid_t& pid = pids_[static_cast<size_t>(rank)];
  int state = 0;
  EXPECT_EQ(waitpid(pid, &state, 0), pid);
  pid = -1;
  return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
}

}  // namespace mydist
