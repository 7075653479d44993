#include "controller/pending_tensors.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

using std::chrono::seconds;

const TimePoint kStart = TimePoint() + std::chrono::hours(5);

TEST(StallInspectorTest, WarnsAtEachDoubling) {
  StallInspector inspector(seconds(10), seconds(0));
  inspector.Start("x", kStart, kStart);
  for (const int due : {10, 20, 40, 80}) {
    EXPECT_EQ(inspector.NextDeadline(), kStart + seconds(due));
    EXPECT_TRUE(inspector.TakeDue(kStart + seconds(due) - std::chrono::nanoseconds(1)).empty());
    const auto events = inspector.TakeDue(kStart + seconds(due));
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].name, "x");
    EXPECT_EQ(events[0].waited, seconds(due));
    EXPECT_FALSE(events[0].expired);
  }
  EXPECT_EQ(inspector.TakeDue(kStart + seconds(330)).size(), 1u) << "a late look";
  EXPECT_EQ(inspector.NextDeadline(), kStart + seconds(640));
  EXPECT_EQ(StallInspector(seconds(0), seconds(0)).NextDeadline(), kNever);
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
  EXPECT_TRUE(inspector.Names().empty());
  EXPECT_EQ(inspector.NextDeadline(), kNever);
}

}  // namespace
}  // namespace mydist
