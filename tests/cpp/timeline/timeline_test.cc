#include "timeline/event.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>

#include "engine/timeline_relay.h"

namespace mydist {
namespace {

void RecordNamed(std::string_view name, Timeline& timeline) {
  timeline.Record(EventPhase::kInstant, "x", name);
}

TEST(TimelineTest, RecordsNothingUnlessEnabled) {
  Timeline timeline;
  EXPECT_FALSE(timeline.enabled());
  timeline.Record(EventPhase::kBegin, "x", "NEGOTIATE");
  RecordNamed("a", timeline);
  EXPECT_TRUE(timeline.Drain().empty());
  EXPECT_EQ(timeline.NextFlush(), std::nullopt);

  timeline.Start(false);
  timeline.Record(EventPhase::kBegin, "x", "NEGOTIATE");
  timeline.Stop();
  timeline.Record(EventPhase::kEnd, "x", "NEGOTIATE");
  ASSERT_EQ(timeline.Drain().size(), 1U);  // What was recorded before Stop is kept.
}

TEST(TimelineTest, TheFirstEventSinceADrainIsOneToDrainFor) {
  Timeline timeline;
  const auto record = [&] { return timeline.Record(EventPhase::kInstant, "x", "a"); };
  EXPECT_FALSE(record()) << "nothing is recorded yet";
  timeline.Start(false);
  EXPECT_TRUE(record());
  EXPECT_FALSE(record());
  EXPECT_EQ(timeline.Drain().size(), 2U);
  EXPECT_TRUE(record());
  timeline.Stop();
  EXPECT_FALSE(record());
}

TEST(TimelineTest, MarkCyclesFollowsStartAndStop) {
  Timeline timeline;
  timeline.Start(true);
  EXPECT_TRUE(timeline.mark_cycles());
  RecordNamed("kept", timeline);
  timeline.Start(false);  // Already recording: only the flag changes.
  EXPECT_FALSE(timeline.mark_cycles());
  EXPECT_EQ(timeline.Drain().size(), 1U);
  timeline.Start(true);
  timeline.Stop();
  EXPECT_FALSE(timeline.mark_cycles());
}

TEST(TimelineTest, FullTimelineDropsTheNewestAndCounts) {
  Timeline timeline(3);
  timeline.Start(false);
  for (const char* name : {"a", "b", "c", "d", "e"}) RecordNamed(name, timeline);
  EXPECT_EQ(timeline.dropped_count(), 2);
  const auto events = timeline.Drain();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[2].name, "c");
  RecordNamed("f", timeline);  // There is room again.
  EXPECT_EQ(timeline.Drain().size(), 1U);
  EXPECT_EQ(timeline.dropped_count(), 2);
}

TEST(TimelineTest, StartForgetsTheRecordingBefore) {
  Timeline timeline(1);
  timeline.Start(false);
  RecordNamed("a", timeline);
  RecordNamed("b", timeline);
  timeline.Stop();
  timeline.Start(false);
  EXPECT_EQ(timeline.dropped_count(), 0);
  EXPECT_TRUE(timeline.Drain().empty());
}

TEST(TimelineTest, FlushIsDueAfterTheOldestEvent) {
  Timeline timeline(8);
  timeline.Start(false);
  EXPECT_EQ(timeline.NextFlush(), std::nullopt);
  const TimePoint before = Now();
  RecordNamed("a", timeline);
  const TimePoint after = Now();
  const auto due = timeline.NextFlush();
  ASSERT_TRUE(due.has_value());
  EXPECT_GE(*due, before + Timeline::kFlushInterval);
  EXPECT_LE(*due, after + Timeline::kFlushInterval);
  RecordNamed("b", timeline);
  EXPECT_EQ(timeline.NextFlush(), due);  // A later event does not put it off.
  RecordNamed("c", timeline);
  RecordNamed("d", timeline);
  EXPECT_LE(*timeline.NextFlush(), after);  // Half full: at once.
  timeline.Drain();
  EXPECT_EQ(timeline.NextFlush(), std::nullopt);
}

TEST(TimelineTest, ConcurrentRecordersLoseNothingUncounted) {
  constexpr int kThreadCount = 4;
  constexpr int kEventCount = 5000;
  Timeline timeline(1000);
  timeline.Start(false);
  std::atomic<int> running{kThreadCount};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreadCount; ++t) {
    threads.emplace_back([&timeline, &running, t] {
      for (int i = 0; i < kEventCount; ++i) {
        timeline.Record(EventPhase::kInstant, std::to_string(t), std::to_string(i));
      }
      --running;
    });
  }
  std::vector<TimelineEvent> all;
  bool is_last = false;
  while (!is_last) {
    is_last = running == 0;
    for (TimelineEvent& event : timeline.Drain()) all.push_back(std::move(event));
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(static_cast<int64_t>(all.size()) + timeline.dropped_count(),
            kThreadCount * kEventCount);
  std::map<std::string, int> last_of_lane;
  int64_t last_ns = 0;
  for (const TimelineEvent& event : all) {
    const int number = std::stoi(event.name);
    const auto [it, is_new] = last_of_lane.try_emplace(event.lane, -1);
    EXPECT_GT(number, it->second);  // Each thread's own order is kept, …
    it->second = number;
    EXPECT_GE(event.time_ns, last_ns);  // … and that of time over all threads.
    last_ns = event.time_ns;
  }
}

TEST(ClockOffsetTest, TheFastestMessageCounts) {
  ClockOffset offset;
  EXPECT_EQ(offset.offset_ns(), 0);
  offset.Observe(1000, 5300);  // Offset 4000, 300 on the way.
  EXPECT_EQ(offset.offset_ns(), 4300);
  offset.Observe(2000, 6050);
  EXPECT_EQ(offset.offset_ns(), 4050);
  offset.Observe(3000, 9000);
  EXPECT_EQ(offset.offset_ns(), 4050);
}

TEST(ClockOffsetTest, PeersAheadGiveNegativeOffsets) {
  ClockOffset offset;
  offset.Observe(9000, 1000);
  EXPECT_EQ(offset.offset_ns(), -8000);
}

}  // namespace
}  // namespace mydist
