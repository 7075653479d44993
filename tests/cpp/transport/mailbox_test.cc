#include "transport/mailbox.h"

#include <gtest/gtest.h>

#include <thread>

namespace mydist {
namespace {

TEST(Mailbox, WhatArrivedBeforeALossIsTakenBeforeIt) {
  Mailbox mailbox;
  mailbox.Put({1, {10}});
  mailbox.PutLoss(Status::PeerLost("rank 1 is gone"));
  mailbox.Put({2, {20}});
  for (const uint8_t expected : {10, 20}) {
    auto message = mailbox.Take();
    ASSERT_TRUE(message.ok());
    ASSERT_TRUE(message->has_value());
    EXPECT_EQ((*message)->payload, Bytes{expected});
  }
  EXPECT_EQ(mailbox.Take().status().message(), "rank 1 is gone");
  auto nothing = mailbox.Take();
  ASSERT_TRUE(nothing.ok()) << "a loss is reported once";
  EXPECT_FALSE(nothing->has_value());
}

TEST(Mailbox, AWakeBeforeTheWaitIsNotLost) {
  Mailbox mailbox;
  mailbox.Wake();
  mailbox.Await(kNever);
  auto nothing = mailbox.Take();
  ASSERT_TRUE(nothing.ok());
  EXPECT_FALSE(nothing->has_value());
}

TEST(Mailbox, AttendedNewsEndsTheWaitOnlyWhenAttentionEnds) {
  Mailbox mailbox;
  mailbox.Attend(true);
  mailbox.Put({1, {10}});
  mailbox.PutLoss(Status::PeerLost("rank 1 is gone"));
  const TimePoint deadline = Now() + std::chrono::milliseconds(5);
  mailbox.Await(deadline);
  EXPECT_GE(Now(), deadline);
  std::thread sleeper([&] { mailbox.Await(kNever); });
  mailbox.Attend(false);
  sleeper.join();  // Hangs when the news is forgotten.
  EXPECT_EQ(mailbox.Take()->value().payload, Bytes{10});
  mailbox.Await(kNever);
  EXPECT_EQ(mailbox.Take().status().message(), "rank 1 is gone");
}

TEST(Mailbox, EveryMessageOfSeveralThreadsIsTakenInItsOrder) {
  constexpr int kThreads = 3;
  constexpr int kEach = 1000;
  Mailbox mailbox;
  std::vector<std::thread> threads;
  for (int source = 0; source < kThreads; ++source) {
    threads.emplace_back([&, source] {
      for (int i = 0; i < kEach; ++i) {
        mailbox.Put({source, {static_cast<uint8_t>(i), static_cast<uint8_t>(i >> 8)}});
      }
    });
  }
  std::vector<int> next(kThreads, 0);
  for (int taken = 0; taken < kThreads * kEach; ++taken) {
    mailbox.Await(kNever);
    auto message = mailbox.Take();
    ASSERT_TRUE(message.ok() && message->has_value());
    const Bytes& payload = (*message)->payload;
    const int number = payload[0] + 256 * payload[1];
    EXPECT_EQ(number, next[static_cast<size_t>((*message)->source)]++);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace mydist
