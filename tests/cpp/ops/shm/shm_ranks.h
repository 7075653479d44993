// Ranks that share an arena: as threads of the test process, or as processes forked from it.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "backends/rank_threads.h"
#include "base/check.h"
#include "base/usable_cores.h"
#include "ops/shm/arena.h"
#include "ops/shm/shm_port.h"

namespace mydist::shm {

// A directory of its own in shared memory, so that what is left behind can be seen.
class ShmDirectory {
 public:
  ShmDirectory() { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~ShmDirectory() { std::filesystem::remove_all(path()); }
  ShmDirectory(const ShmDirectory&) = delete;
  ShmDirectory& operator=(const ShmDirectory&) = delete;

  std::string path() const { return path_.data(); }
  bool IsEmpty() const { return std::filesystem::is_empty(path()); }

 private:
  std::array<char, 32> path_{"/dev/shm/mydist-test-XXXXXX"};
};

// Small enough that tensors of the suites take many steps.
inline constexpr int64_t kSmallSlot = 8 << 10;

inline ArenaOptions OptionsOf(int rank, int size, const ShmDirectory& directory,
                              int64_t slot_bytes = kSmallSlot) {
  ArenaOptions options;
  options.ranks.resize(static_cast<size_t>(size));
  std::iota(options.ranks.begin(), options.ranks.end(), 0);
  options.index = rank;
  options.host = "h";
  options.directory = directory.path();
  options.slot_bytes = slot_bytes;
  options.ring_bytes = 8 << 10;
  options.zone_bytes = int64_t{64} << 20;
  options.is_crowded =
      !HaveACoreEach(std::vector(options.ranks.size(), UsableCores::OfThisThread()));
  return options;
}

inline std::unique_ptr<ShmPort> OpenPort(const ArenaOptions& options,
                                         const ArenaExchange& exchange) {
  Result<Arena::Establishment> result = Arena::Establish(options, exchange);
  if (!result.ok() || result->arena == nullptr) {
    ADD_FAILURE() << (result.ok() ? result->reason : result.status().ToString());
    return nullptr;
  }
  return std::make_unique<ShmPort>(std::move(result->arena));
}

using PortBody = std::function<void(ShmPort& port, int rank)>;

inline void OnThreadsWithPort(int size, int64_t slot_bytes, const PortBody& body,
                              CrossMemoryAttach attach = CrossMemoryAttach::kAuto) {
  const ShmDirectory directory;
  InMemoryRendezvous rendezvous(size);
  RunAsRanks(size, [&](int rank) {
    ArenaOptions options = OptionsOf(rank, size, directory, slot_bytes);
    options.cross_memory_attach = attach;
    const auto port = OpenPort(options, rendezvous.ForRank(rank));
    if (port != nullptr) body(*port, rank);
  });
  EXPECT_TRUE(directory.IsEmpty());
}

// Ranks as processes forked from the test. `body` runs in each; a failed expectation there makes
// the process's exit code 1, a failed assertion kGaveUp. Others may wait for a rank that gave up or
// crashed, so the test ends them when it finds out.
class ForkedRanks {
 public:
  struct Seat {
    int rank;
    ArenaExchange exchange;
    std::function<void()> report;  // Tells the test that this rank has come so far.
  };
  using Body = std::function<void(const Seat& seat)>;
  static constexpr int kGaveUp = 2;

  ForkedRanks(int size, const Body& body) : board_(MakeBoard(size)) {
    EXPECT_EQ(pipe(reports_.data()), 0);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = fork();
      MYDIST_CHECK(pid >= 0);
      if (pid == 0) RunChild(rank, size, body);
      pids_.push_back(pid);
      exits_.emplace_back();
    }
  }
  ~ForkedRanks() {
    for (size_t rank = 0; rank < pids_.size(); ++rank) Kill(static_cast<int>(rank));
    munmap(board_, sizeof(Board));
    close(reports_[0]);
    close(reports_[1]);
  }
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  // Waits until so many ranks have reported, or one has given up.
  void AwaitReports(int count) const {
    for (int i = 0; i < count; ++i) {
      char report = 0;
      ASSERT_EQ(read(reports_[0], &report, 1), 1);
      ASSERT_EQ(report, kReport) << "a rank gave up";
    }
  }

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }

  void Kill(int rank) {
    EndNow(static_cast<size_t>(rank));
    Wait(rank);
  }
  // The exit code, or minus the signal.
  int Wait(int rank) {
    const std::optional<int>& exit = exits_[static_cast<size_t>(rank)];
    while (!exit) TakeNextExit();
    return *exit;
  }

 private:
  static constexpr char kReport = 'r';
  static constexpr char kNoReport = 'n';

  struct Board {
    pthread_barrier_t barrier;
    struct {
      size_t bytes;
      std::array<uint8_t, 1024> data;
    } blobs[8];
  };

  static Board* MakeBoard(int size) {
    void* memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto* board = static_cast<Board*>(memory);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&board->barrier, &shared, static_cast<unsigned>(size));
    return board;
  }

  Result<std::vector<Bytes>> Exchange(int rank, int size, const Bytes& mine) {
    auto& own = board_->blobs[rank];
    own.bytes = mine.size();
    std::copy(mine.begin(), mine.end(), own.data.begin());
    pthread_barrier_wait(&board_->barrier);
    std::vector<Bytes> all;
    for (int peer = 0; peer < size; ++peer) {
      const auto& blob = board_->blobs[peer];
      all.emplace_back(blob.data.begin(), blob.data.begin() + static_cast<int64_t>(blob.bytes));
    }
    pthread_barrier_wait(&board_->barrier);
    return all;
  }

  [[noreturn]] void RunChild(int rank, int size, const Body& body) {
    const auto report = [&](char what) { EXPECT_EQ(write(reports_[1], &what, 1), 1); };
    body({rank, [&](const Bytes& mine) { return Exchange(rank, size, mine); },
          [&] { report(kReport); }});
    const bool gave_up = ::testing::Test::HasFatalFailure();
    if (gave_up) report(kNoReport);
    fflush(nullptr);
    _exit(gave_up ? kGaveUp : ::testing::Test::HasFailure() ? 1 : 0);
  }

  void EndNow(size_t rank) {
    if (!exits_[rank]) kill(pids_[rank], SIGKILL);
  }

  void TakeNextExit() {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, 0);
    const auto found = std::find(pids_.begin(), pids_.end(), pid);
    MYDIST_CHECK(found != pids_.end());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    exits_[static_cast<size_t>(found - pids_.begin())] = code;
    if (code != kGaveUp && (code >= 0 || code == -SIGKILL)) return;
    for (size_t rank = 0; rank < pids_.size(); ++rank) EndNow(rank);
  }

  Board* const board_;
  std::array<int, 2> reports_{};
  std::vector<pid_t> pids_;
  std::vector<std::optional<int>> exits_;  // Of those that have ended.
};

// As OnThreadsWithPort, in processes.
inline void OnProcessesWithPort(int size, const PortBody& body,
                                CrossMemoryAttach attach = CrossMemoryAttach::kAuto) {
  const ShmDirectory directory;
  ForkedRanks ranks(size, [&](const ForkedRanks::Seat& seat) {
    ArenaOptions options = OptionsOf(seat.rank, size, directory);
    options.cross_memory_attach = attach;
    const auto port = OpenPort(options, seat.exchange);
    ASSERT_NE(port, nullptr);
    EXPECT_TRUE(directory.IsEmpty());
    body(*port, seat.rank);
  });
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
  EXPECT_TRUE(directory.IsEmpty());
}

// Tests for so many ranks and each way to private memory.
class RanksAndAttach : public ::testing::TestWithParam<std::tuple<int, CrossMemoryAttach>> {
 public:
  static std::string NameOf(const ::testing::TestParamInfo<ParamType>& instance) {
    constexpr std::array kNames = {"Auto", "On", "Off"};
    const auto& [size, attach] = instance.param;
    return std::to_string(size) + "ranksAttach" + kNames[static_cast<size_t>(attach)];
  }
  static auto EveryAttach() {
    return ::testing::Values(CrossMemoryAttach::kAuto, CrossMemoryAttach::kOn,
                             CrossMemoryAttach::kOff);
  }

 protected:
  int size() const { return std::get<0>(GetParam()); }
  CrossMemoryAttach attach() const { return std::get<1>(GetParam()); }
};

}  // namespace mydist::shm
