#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/clock.h"

namespace mydist {
namespace {

TEST(MutexTest, KeepsThreadsApart) {
  Mutex mutex;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10000; ++i) {
        MutexLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 40000);
}

TEST(MutexTest, TryLockFailsWhileHeld) {
  Mutex mutex;
  bool is_free = true;
  {
    MutexLock lock(mutex);
    std::thread([&] {
      is_free = mutex.TryLock();
      if (is_free) mutex.Unlock();
    }).join();
    EXPECT_FALSE(is_free);
  }
  std::thread([&] {
    is_free = mutex.TryLock();
    if (is_free) mutex.Unlock();
  }).join();
  EXPECT_TRUE(is_free);
}

TEST(CondVarTest, WaitIsEndedByANotification) {
  Mutex mutex;
  CondVar condition;
  bool is_ready = false;
  std::thread waker([&] {
    MutexLock lock(mutex);
    is_ready = true;
    condition.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    while (!is_ready) condition.Wait(mutex);
    EXPECT_TRUE(is_ready);
  }
  waker.join();
}

TEST(CondVarTest, WaitUntilEndsAtTheDeadline) {
  Mutex mutex;
  CondVar condition;
  MutexLock lock(mutex);
  const TimePoint deadline = Now() + std::chrono::milliseconds(5);
  while (condition.WaitUntil(mutex, deadline)) {
  }
  EXPECT_GE(Now(), deadline);
  // Held again after the wait.
  bool is_free = true;
  std::thread([&] { is_free = mutex.TryLock(); }).join();
  EXPECT_FALSE(is_free);
}

TEST(ClockTest, DoesNotGoBackwards) {
  const TimePoint first = Now();
  const TimePoint second = Now();
  EXPECT_LE(first, second);
  EXPECT_LT(second, kNever);
  EXPECT_DOUBLE_EQ(ToSeconds(std::chrono::milliseconds(1500)), 1.5);
}

}  // namespace
}  // namespace mydist
