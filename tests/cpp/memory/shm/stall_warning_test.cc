// What a rank says while others hold it up in the middle of a collective.
#include "memory/shm/waiter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <latch>
#include <vector>

#include "algorithms/shm/shm_collectives.h"
#include "algorithms/shm/shm_ranks.h"
#include "conformance/every_collective_suite.h"

namespace mydist::shm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::milliseconds kFirst{1};

Status SumOfOnes(ShmPort& port, const std::vector<int>& ranks) {
  std::vector<float> data(1000, 1);
  return ShmCollectives(&port, ranks).Allreduce(data.data(), 1000, {});
}

// Ranks 0 and 1 wait for rank 2, and for each other as long as only one of them has come, or once
// rank 2 has. Only what they say in between is 'x'.
class WaitForTheLast {
 public:
  // What rank 0 or 1 is in the middle of; `warning_count` is its own.
  std::string Describe(int& warning_count) {
    // Whom a warning names is found before it asks here: at the first one since the other rank came
    // that may still have been the other rank.
    if (warning_count == 0) both_have_come_.count_down();
    if (warning_count == 0 || both_have_come_.try_wait()) ++warning_count;
    if (warning_count < 3 || last_comes_) return "allreduce 'y'";
    if (warning_count == 3) both_have_warned_.count_down();
    return "allreduce 'x'";
  }
  // Returns when both have said 'x'.
  void ComeLast() {
    both_have_warned_.wait();
    last_comes_ = true;
  }

 private:
  std::latch both_have_come_{2};
  std::latch both_have_warned_{2};
  std::atomic<bool> last_comes_ = false;
};

TEST(StallWarning, NamesTheCollectiveAndTheRankThatDoesNotCome) {
  WaitForTheLast wait;
  ::testing::internal::CaptureStderr();
  OnThreadsWithPort(3, kSmallSlot, [&](ShmPort& port, int rank) {
    int warning_count = 0;
    if (rank == 2) {
      wait.ComeLast();
    } else {
      port.WarnOfStalls(kFirst, [&] { return wait.Describe(warning_count); });
    }
    testing::ExpectOk(SumOfOnes(port, {0, 1, 2}));
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("'x' has begun and has waited for rank 2 (host h, pid "));
  EXPECT_THAT(text, Not(HasSubstr("'x' has begun and has waited for rank 0")));
  EXPECT_THAT(text, Not(HasSubstr("'x' has begun and has waited for rank 1")));
}

bool IsStopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  return std::getline(file, line) && line[line.rfind(')') + 2] == 'T';
}

TEST(StallWarning, SaysThatAProcessIsStopped) {
  const ShmDirectory directory;
  ForkedRanks ranks(2, [&](const ForkedRanks::Seat& seat) {
    const auto port = OpenPort(OptionsOf(seat.rank, 2, directory), seat.exchange);
    ASSERT_NE(port, nullptr);
    testing::ExpectOk(SumOfOnes(*port, {0, 1}));
    if (seat.rank == 1) {
      raise(SIGSTOP);
      return testing::ExpectOk(SumOfOnes(*port, {0, 1}));
    }
    while (!IsStopped(static_cast<pid_t>(port->arena().rank_line(1).pid.load()))) sched_yield();
    std::atomic<bool> has_warned = false;
    port->WarnOfStalls(kFirst, [&] {
      if (!has_warned.exchange(true)) seat.report();
      return std::string("allreduce 'x'");
    });
    ::testing::internal::CaptureStderr();
    testing::ExpectOk(SumOfOnes(*port, {0, 1}));
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr(", which is stopped by a signal or a debugger, for "));
  });
  ranks.AwaitReports(1);
  kill(ranks.pid(1), SIGCONT);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

TEST(StallWarning, ComesAgainAtTwiceTheTime) {
  OnThreadsWithPort(1, kSmallSlot, [](ShmPort& port, int) {
    StallWarning warning(&port.arena());
    int warnings = 0;
    warning.Set(std::chrono::hours(1), [&] {
      ++warnings;
      return std::string("a barrier");
    });
    const int peer = 0;
    StallWarning::Wait wait;
    const auto after = [&](std::chrono::minutes waited) {
      wait.begin = Now() - waited;
      warning.Look(wait, {&peer, 1});
      return warnings;
    };
    EXPECT_EQ(after(std::chrono::minutes(59)), 0);
    EXPECT_EQ(after(std::chrono::minutes(61)), 1);
    EXPECT_EQ(after(std::chrono::minutes(119)), 1);
    EXPECT_EQ(after(std::chrono::minutes(121)), 2);
    EXPECT_EQ(after(std::chrono::minutes(239)), 2);
    EXPECT_EQ(after(std::chrono::minutes(600)), 3);
    EXPECT_EQ(after(std::chrono::minutes(959)), 3);
    warning.Set(Duration::zero(), [] { return std::string("nothing"); });
    EXPECT_EQ(after(std::chrono::hours(100)), 3);
  });
}

}  // namespace
}  // namespace mydist::shm
