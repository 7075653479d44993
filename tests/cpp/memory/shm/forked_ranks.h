// ForkedRanks: ranks as processes forked from a test. The test owns it, waits for the ranks, and
// learns at once when one fails; how many there are is known from the start.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "memory/shm/arena.h"

namespace mydist::shm {

// `body` runs in each rank. A failed expectation there makes the process's exit code 1. A failed
// assertion, also in what `body` calls, ends the process at once with kGaveUp: on the way out it
// might wait for the others for ever. They may wait for a rank that gave up or crashed, so the test
// ends them when it finds out.
class ForkedRanks {
 public:
  struct Seat {
    int rank;
    ArenaExchange exchange;
    std::function<void()> report;  // Tells the test that this rank has come so far.
  };
  using Blob = std::vector<uint8_t>;
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

  // Waits until so many ranks have reported. Fails as soon as one has given up or crashed.
  void AwaitReports(int count) {
    for (int i = 0; i < count; ++i) {
      struct pollfd reports {};
      reports.fd = reports_[0];
      reports.events = POLLIN;
      while (poll(&reports, 1, kMillisecondsPerLook) == 0) ASSERT_FALSE(HasBroken());
      char report = 0;
      ASSERT_EQ(read(reports_[0], &report, 1), 1);
    }
  }
  // Waits until the rank has stopped itself.
  void AwaitStop(int rank) {
    int status = 0;
    ASSERT_EQ(waitpid(pid(rank), &status, WUNTRACED), pid(rank));
    if (!WIFSTOPPED(status)) Note(pid(rank), status);
    ASSERT_TRUE(WIFSTOPPED(status)) << "rank " << rank << " has ended";
  }
  // Waits until the rank's main thread has gone to sleep so many times from now on.
  void AwaitSleeps(int rank, int64_t count) {
    const int64_t end = SleepsOf(rank) + count;
    while (SleepsOf(rank) < end) {
      ASSERT_FALSE(HasBroken());
      ASSERT_FALSE(exits_[static_cast<size_t>(rank)]) << "rank " << rank << " has ended";
      sched_yield();
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
    while (!exit) TakeExit(0);
    return *exit;
  }

 private:
  static constexpr int kMillisecondsPerLook = 20;

  // In a rank: the first failed assertion is the end.
  class Quitter : public ::testing::EmptyTestEventListener {
   public:
    void OnTestPartResult(const ::testing::TestPartResult& result) override {
      if (!result.fatally_failed()) return;
      fflush(nullptr);
      _exit(kGaveUp);
    }
  };

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

  Result<std::vector<Blob>> Exchange(int rank, int size, const Blob& mine) {
    auto& own = board_->blobs[rank];
    MYDIST_CHECK(mine.size() <= own.data.size());
    own.bytes = mine.size();
    std::copy(mine.begin(), mine.end(), own.data.begin());
    pthread_barrier_wait(&board_->barrier);
    std::vector<Blob> all;
    for (int peer = 0; peer < size; ++peer) {
      const auto& blob = board_->blobs[peer];
      all.emplace_back(blob.data.begin(), blob.data.begin() + static_cast<int64_t>(blob.bytes));
    }
    pthread_barrier_wait(&board_->barrier);
    return all;
  }

  [[noreturn]] void RunChild(int rank, int size, const Body& body) {
    ::testing::UnitTest::GetInstance()->listeners().Append(new Quitter);  // After the printer.
    body({rank, [&](const Blob& mine) { return Exchange(rank, size, mine); },
          [&] { EXPECT_EQ(write(reports_[1], "r", 1), 1); }});
    fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }

  void EndNow(size_t rank) {
    if (!exits_[rank]) kill(pids_[rank], SIGKILL);
  }

  int64_t SleepsOf(int rank) const {
    std::ifstream file("/proc/" + std::to_string(pid(rank)) + "/status");
    const std::string key = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(key)) return std::stoll(line.substr(key.size()));
    }
    return 0;
  }

  // Whether one of those that have ended so far gave up or crashed.
  bool HasBroken() {
    while (LivingCount() > 0 && TakeExit(WNOHANG)) {
    }
    return std::any_of(exits_.begin(), exits_.end(),
                       [](const std::optional<int>& exit) { return exit && IsBreak(*exit); });
  }
  static bool IsBreak(int exit) {
    return exit == kGaveUp || (exit < 0 && exit != -SIGKILL && exit != -SIGTERM);
  }

  int64_t LivingCount() const { return std::count(exits_.begin(), exits_.end(), std::nullopt); }

  // False when WNOHANG is among the options and none has ended.
  bool TakeExit(int options) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, options);
    if (pid == 0) return false;
    Note(pid, status);
    return true;
  }

  void Note(pid_t pid, int status) {
    const auto found = std::find(pids_.begin(), pids_.end(), pid);
    MYDIST_CHECK(found != pids_.end());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    exits_[static_cast<size_t>(found - pids_.begin())] = code;
    if (!IsBreak(code)) return;
    for (size_t rank = 0; rank < pids_.size(); ++rank) EndNow(rank);
  }

  Board* const board_;
  std::array<int, 2> reports_{};
  std::vector<pid_t> pids_;
  std::vector<std::optional<int>> exits_;  // Of those that have ended.
};

}  // namespace mydist::shm
