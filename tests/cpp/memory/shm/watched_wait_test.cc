// A wait in shared memory asks the watchdog whether it goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <vector>

#include "algorithms/shm/shm_collectives.h"
#include "algorithms/shm/shm_ranks.h"
#include "conformance/every_collective_suite.h"
#include "memory/shm/waiter.h"

namespace mydist::shm {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Ends the wait at the `last` look.
class CountingWatchdog final : public Watchdog {
 public:
  explicit CountingWatchdog(size_t last) : last_(last) {}

  Status Look(TimePoint begin, std::span<const int> peers) override {
    begins.push_back(begin);
    whom.emplace_back(peers.begin(), peers.end());
    return begins.size() < last_ ? Status::Ok() : Status::Timeout("it takes too long");
  }

  std::vector<TimePoint> begins;
  std::vector<std::vector<int>> whom;

 private:
  const size_t last_;
};

Status SumOfOnes(ShmPort& port, const std::vector<int>& ranks) {
  std::vector<float> data(1000, 1);
  return ShmCollectives(&port, ranks).Allreduce(data.data(), 1000, {});
}

TEST(WaitWithWatchdog, EndsWithWhatTheWatchdogSays) {
  CountingWatchdog watchdog(3);
  std::latch has_ended(1);
  OnThreadsWithPort(2, kSmallSlot, [&](ShmPort& port, int rank) {
    if (rank == 1) {
      has_ended.wait();
      // Rank 0 has done its part of the first one, and will not do that of another.
      [[maybe_unused]] const Status late = SumOfOnes(port, {0, 1});
      EXPECT_EQ(SumOfOnes(port, {0, 1}).code(), StatusCode::kPeerLost);
      return;
    }
    port.SetWatchdog(&watchdog);
    const TimePoint begin = Now();
    EXPECT_EQ(SumOfOnes(port, {0, 1}).code(), StatusCode::kTimeout);
    EXPECT_GE(Now() - begin, 3 * kLookInterval);
    has_ended.count_down();
  });
  EXPECT_THAT(watchdog.whom, ElementsAre(ElementsAre(1), ElementsAre(1), ElementsAre(1)));
  EXPECT_THAT(watchdog.begins, Each(watchdog.begins.front()));
}

}  // namespace
}  // namespace mydist::shm
