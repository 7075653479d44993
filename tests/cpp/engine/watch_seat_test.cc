#include "engine/watch_seat.h"

#include <gtest/gtest.h>

#include <thread>

namespace mydist {
namespace {

constexpr Duration kLong = std::chrono::hours(1);

// The engine's thread, which counts how often it has come to look after the engine.
class WatchSeatTest : public ::testing::Test {
 protected:
  ~WatchSeatTest() override {
    is_over_ = true;
    seat_.Leave(TimePoint::min(), Now());
    while (thread_.joinable() && !has_ended_) seat_.Wake();
    if (thread_.joinable()) thread_.join();
  }
  void StartThread() {
    thread_ = std::thread([this] {
      while (!is_over_) {
        seat_.Sleep(kNever);
        ++looks_;
      }
      has_ended_ = true;
    });
  }
  void AwaitLook(int64_t before) const {
    const TimePoint limit = Now() + std::chrono::seconds(30);
    while (looks_ == before) ASSERT_LT(Now(), limit) << "nobody looks after the engine";
  }

  Coordinator coordinator_{CoordinatorOptions(), nullptr};
  WatchSeat seat_{&coordinator_, kLong};
  std::atomic<int64_t> looks_{0};
  std::atomic<bool> is_over_{false};
  std::atomic<bool> has_ended_{false};
  std::thread thread_;
};

TEST_F(WatchSeatTest, TheThreadSleepsUntilItIsWokenOrDue) {
  const TimePoint deadline = Now() + std::chrono::milliseconds(5);
  seat_.Sleep(deadline);
  EXPECT_GE(Now(), deadline);
  seat_.Wake();  // Before it sleeps: must not be lost.
  seat_.Sleep(kNever);
  EXPECT_EQ(seat_.wakeups(), 2);
}

TEST_F(WatchSeatTest, NobodyHasASeatToTakeAgainThatWasNeverTaken) {
  EXPECT_FALSE(seat_.TakeAgain());
}

// Both ways for a driver to be woken in its sleep: whatever wakes it leaves the thread alone.
TEST_F(WatchSeatTest, WhoDrivesIsWokenInPlaceOfTheThread) {
  StartThread();
  seat_.Take();
  const int64_t looks = looks_;
  for (int i = 0; i < 100; ++i) {
    std::thread waker([&] { seat_.Wake(); });
    seat_.SleepDriving(kNever);
    waker.join();
    seat_.SleepDriving(Now());  // Uses up a wake that came twice.
  }
  EXPECT_EQ(looks_, looks);
}

TEST_F(WatchSeatTest, TheThreadStaysAwayWhileTheSeatIsKeptAndComesWhenCalled) {
  StartThread();
  for (int i = 0; i < 100; ++i) {
    seat_.Take();
    seat_.Leave(Now() + kLong, Now());
    const int64_t wakeups = seat_.wakeups();
    for (int drive = 0; drive < 10; ++drive) {
      ASSERT_TRUE(seat_.TakeAgain());
      seat_.Leave(Now() + kLong, Now());
    }
    ASSERT_LE(seat_.wakeups(), wakeups + 1) << "of the drive before";
    const int64_t looks = looks_;
    seat_.Wake();
    AwaitLook(looks);
  }
}

TEST_F(WatchSeatTest, ASeatLeftForGoodIsTheThreadsAgain) {
  StartThread();
  for (int i = 0; i < 100; ++i) {
    seat_.Take();
    seat_.Leave(TimePoint::min(), Now());
    const TimePoint limit = Now() + std::chrono::seconds(30);
    while (seat_.TakeAgain()) {
      ASSERT_LT(Now(), limit);
      seat_.Leave(TimePoint::min(), Now());
    }
    const int64_t looks = looks_;
    seat_.Wake();
    AwaitLook(looks);
  }
}

TEST_F(WatchSeatTest, AKeptSeatGoesBackWhenItsTimeIsUp) {
  StartThread();
  seat_.Take();
  seat_.Leave(Now() + std::chrono::milliseconds(1), Now());
  const TimePoint limit = Now() + std::chrono::seconds(30);
  while (seat_.TakeAgain()) {
    ASSERT_LT(Now(), limit);
    // No later than before: nobody keeps it.
    const TimePoint now = Now();
    seat_.Leave(now, now);
  }
}

// A drive as long as the thread waits before it looks whether the series is over.
TEST(WatchSeat, TheThreadSleepsThroughALongDrive) {
  Coordinator coordinator{CoordinatorOptions(), nullptr};
  WatchSeat seat(&coordinator, std::chrono::microseconds(100));
  std::atomic<bool> is_over{false};
  std::thread thread([&] {
    while (!is_over) seat.Sleep(kNever);
  });
  seat.Take();
  const int64_t before = seat.wakeups();
  seat.SleepDriving(Now() + std::chrono::milliseconds(50));
  EXPECT_LE(seat.wakeups() - before, 3);  // It looks twice, and may just have come from Await.
  is_over = true;
  seat.Leave(TimePoint::min(), Now());
  seat.Wake();
  thread.join();
}

}  // namespace
}  // namespace mydist
