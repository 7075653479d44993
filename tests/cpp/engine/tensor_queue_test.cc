#include "engine/tensor_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace mydist {
namespace {

TEST(TensorQueueTest, OnlyTheFirstHasToWakeTheEngine) {
  TensorQueue<int> queue;
  EXPECT_EQ(queue.Push(1), Pushed::kFirst);
  EXPECT_EQ(queue.Push(2), Pushed::kBehind);
  EXPECT_EQ(queue.Drain(), (std::vector<int>{1, 2}));
  EXPECT_TRUE(queue.Drain().empty());
  EXPECT_EQ(queue.Push(3), Pushed::kFirst);
}

// Behind what is not due it is still the first that is.
TEST(TensorQueueTest, WhatIsNotDueWakesNobodyAndHidesNothing) {
  TensorQueue<int> queue;
  EXPECT_EQ(queue.PushUnhurried(1), Pushed::kBehind);
  EXPECT_EQ(queue.Push(2), Pushed::kFirst);
  EXPECT_EQ(queue.Push(3), Pushed::kBehind);
  EXPECT_EQ(queue.PushUnhurried(4), Pushed::kBehind);
  EXPECT_EQ(queue.Drain(), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(queue.PushUnhurried(5), Pushed::kBehind);
  EXPECT_FALSE(queue.empty());
  EXPECT_EQ(queue.Push(6), Pushed::kFirst);
}

TEST(TensorQueueTest, ClosedItRefusesAndHandsBackTheRest) {
  TensorQueue<std::unique_ptr<int>> queue;
  EXPECT_EQ(queue.Push(std::make_unique<int>(1)), Pushed::kFirst);
  EXPECT_EQ(queue.Close().size(), 1u);
  EXPECT_EQ(queue.Push(std::make_unique<int>(2)), Pushed::kClosed);
  EXPECT_EQ(queue.PushUnhurried(std::make_unique<int>(3)), Pushed::kClosed);
  EXPECT_TRUE(queue.Drain().empty());
  EXPECT_TRUE(queue.Close().empty());
}

TEST(TensorQueueTest, ThreadsLoseNothingAndKeepTheirOrder) {
  constexpr int kThreads = 4;
  constexpr int kItems = 2000;
  TensorQueue<std::pair<int, int>> queue;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&queue, thread] {
      for (int i = 0; i < kItems; ++i) EXPECT_NE(queue.Push({thread, i}), Pushed::kClosed);
    });
  }
  std::vector<int> next(kThreads);
  int taken = 0;
  while (taken < kThreads * kItems) {
    const auto items = queue.Drain();
    for (const auto& [thread, i] : items) EXPECT_EQ(i, next[static_cast<size_t>(thread)]++);
    taken += static_cast<int>(items.size());
    if (items.empty()) std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace mydist
