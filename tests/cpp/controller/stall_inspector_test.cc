#include "controller/pending_tensors.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

using std::chrono::seconds;

const TimePoint kStart = TimePoint() + std::chrono::hours(5);

TEST(StallInspectorTest, NothingWaitsAtFirst) {
  StallInspector inspector(seconds(10), seconds(0));
  EXPECT_EQ(inspector.NextDeadline(), kNever);
  EXPECT_TRUE(inspector.TakeDue(kStart + std::chrono::hours(1)).empty());
}

TEST(StallInspectorTest, WarnsAtEachDoubling) {
  StallInspector inspector(seconds(10), seconds(0));
  const uint64_t wait = inspector.Start("x", kStart, kStart);
  for (const int due : {10, 20, 40, 80}) {
    EXPECT_EQ(inspector.NextDeadline(), kStart + seconds(due));
    EXPECT_TRUE(inspector.TakeDue(kStart + seconds(due) - std::chrono::nanoseconds(1)).empty());
    const auto events = inspector.TakeDue(kStart + seconds(due));
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].wait, wait);
    EXPECT_EQ(events[0].name, "x");
    EXPECT_EQ(events[0].waited, seconds(due));
    EXPECT_FALSE(events[0].expired);
  }
}

TEST(StallInspectorTest, ALateLookSkipsMissedWarnings) {
  StallInspector inspector(seconds(10), seconds(0));
  inspector.Start("x", kStart, kStart);
  EXPECT_EQ(inspector.TakeDue(kStart + seconds(55)).size(), 1u);
  EXPECT_EQ(inspector.NextDeadline(), kStart + seconds(80));
}

TEST(StallInspectorTest, AStoppedWaitIsForgotten) {
  StallInspector inspector(seconds(10), seconds(0));
  const uint64_t first = inspector.Start("x", kStart, kStart);
  inspector.Start("y", kStart + seconds(3), kStart + seconds(3));
  inspector.Stop(first);
  inspector.Stop(first);
  EXPECT_EQ(inspector.NextDeadline(), kStart + seconds(13));
  const auto events = inspector.TakeDue(kStart + seconds(100));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].name, "y");
  inspector.Stop(events[0].wait);
  EXPECT_EQ(inspector.NextDeadline(), kNever);
}

TEST(StallInspectorTest, ExpiresOnce) {
  StallInspector inspector(seconds(10), seconds(15));
  inspector.Start("x", kStart, kStart);
  EXPECT_FALSE(inspector.TakeDue(kStart + seconds(10)).at(0).expired);
  EXPECT_EQ(inspector.NextDeadline(), kStart + seconds(15));
  EXPECT_TRUE(inspector.TakeDue(kStart + seconds(15)).at(0).expired);
  EXPECT_EQ(inspector.NextDeadline(), kStart + seconds(20));
  EXPECT_FALSE(inspector.TakeDue(kStart + seconds(20)).at(0).expired);
}

TEST(StallInspectorTest, ExpiresWithoutWarnings) {
  StallInspector inspector(seconds(0), seconds(15));
  inspector.Start("x", kStart, kStart);
  EXPECT_EQ(inspector.NextDeadline(), kStart + seconds(15));
  EXPECT_TRUE(inspector.TakeDue(kStart + seconds(15)).at(0).expired);
  EXPECT_EQ(inspector.NextDeadline(), kNever);
}

TEST(StallInspectorTest, SwitchedOffItNeverWakesAnybody) {
  StallInspector inspector(seconds(0), seconds(0));
  EXPECT_NE(inspector.Start("x", kStart, kStart), 0u);
  EXPECT_EQ(inspector.NextDeadline(), kNever);
  EXPECT_TRUE(inspector.TakeDue(kStart + std::chrono::hours(100)).empty());
}

TEST(StallInspectorTest, AWaitMayHaveBegunEarlier) {
  StallInspector inspector(seconds(10), seconds(0));
  inspector.Start("y", kStart, kStart);
  inspector.Start("x", kStart - seconds(8), kStart);
  EXPECT_EQ(inspector.NextDeadline(), kStart + seconds(2));
  const auto events = inspector.TakeDue(kStart + seconds(2));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].name, "x");
  EXPECT_EQ(inspector.NextDeadline(), kStart + seconds(10));
}

TEST(StallInspectorTest, ForgetsAMillionShortWaits) {
  StallInspector inspector(seconds(10), seconds(0));
  for (int i = 0; i < 1'000'000; ++i) inspector.Stop(inspector.Start("x", kStart, kStart));
  EXPECT_EQ(inspector.wait_count(), 0u);
  EXPECT_EQ(inspector.NextDeadline(), kNever);
}

}  // namespace
}  // namespace mydist
