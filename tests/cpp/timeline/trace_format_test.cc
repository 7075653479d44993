#include "timeline/trace_format.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "timeline/json_value.h"
#include "timeline/trace_writer.h"

namespace mydist {
namespace {

using testing::JsonValue;
using testing::ParseJson;

std::vector<JsonValue> Parse(const TraceRecords& records) {
  std::vector<JsonValue> values;
  for (size_t i = 0; i < records.size(); ++i) {
    const auto value = ParseJson(records[i]);
    EXPECT_TRUE(value.has_value()) << records[i];
    values.push_back(value.value_or(JsonValue{}));
  }
  return values;
}

using Words = std::vector<std::string>;

// The records of one event of rank 0 that comes alone.
std::vector<JsonValue> One(TraceFormat& format, const TimelineEvent& event,
                           int64_t clock_offset_ns = 0) {
  return Parse(format.Format(0, {&event, 1}, clock_offset_ns).records);
}

// Those without the metadata, as "phase name" words.
Words Phases(const std::vector<JsonValue>& records) {
  Words words;
  for (const JsonValue& value : records) {
    if (value["ph"].text != "M") words.push_back(value["ph"].text + " " + value["name"].text);
  }
  return words;
}

Words Together(TraceFormat& format, const std::vector<TimelineEvent>& events) {
  return Phases(Parse(format.Format(0, events, 0).records));
}

Words OneByOne(TraceFormat& format, const std::vector<TimelineEvent>& events) {
  Words words;
  for (const TimelineEvent& event : events) {
    for (const std::string& word : Phases(One(format, event))) words.push_back(word);
  }
  return words;
}

TimelineEvent Begin(int64_t time_ns, const char* name) {
  return {time_ns, 0, EventPhase::kBegin, "a", name, ""};
}

TimelineEvent End(int64_t time_ns, const char* name) {
  return {time_ns, 0, EventPhase::kEnd, "a", name, ""};
}

TEST(TraceFormatTest, EveryRankIsAProcess) {
  const auto values = Parse(TraceFormat(3, 0).Header({"alpha", "be\"ta"}));
  ASSERT_EQ(values.size(), 6U);
  EXPECT_EQ(values[0]["ph"].text, "M");
  EXPECT_EQ(values[0]["name"].text, "process_name");
  EXPECT_EQ(values[0]["args"]["name"].text, "rank 0 (alpha)");
  EXPECT_EQ(values[2]["pid"].number, 1);
  EXPECT_EQ(values[2]["args"]["name"].text, "rank 1 (be\"ta)");
  EXPECT_EQ(values[4]["args"]["name"].text, "rank 2");
  EXPECT_EQ(values[5]["name"].text, "process_sort_index");
  EXPECT_EQ(values[5]["args"]["sort_index"].number, 2);
}

TEST(TraceFormatTest, EveryLaneIsANamedThread) {
  TraceFormat format(2, 0);
  const std::vector<TimelineEvent> events = {
      {1000, 0, EventPhase::kInstant, "a", "ENQUEUE", ""},
      {2000, 0, EventPhase::kInstant, "b", "ENQUEUE", ""},
      {3000, 0, EventPhase::kInstant, "a", "COMPLETE", ""},
  };
  const auto values = Parse(format.Format(0, events, 0).records);
  ASSERT_EQ(values.size(), 3U + 2 * 2);  // Two records of metadata per new lane, before the rest.
  EXPECT_EQ(values[0]["name"].text, "thread_name");
  EXPECT_EQ(values[0]["args"]["name"].text, "a");
  EXPECT_EQ(values[0]["tid"].number, 1);
  EXPECT_EQ(values[2]["tid"].number, 2);
  EXPECT_EQ(values[4]["tid"].number, 1);
  EXPECT_EQ(values[5]["tid"].number, 2);
  EXPECT_EQ(values[6]["tid"].number, 1);
  EXPECT_EQ(values[6]["name"].text, "COMPLETE");
  const auto others = Parse(format.Format(1, std::span(events).subspan(1, 1), 0).records);
  ASSERT_EQ(others.size(), 3U);
  EXPECT_EQ(others[2]["pid"].number, 1);
  EXPECT_EQ(others[2]["tid"].number, 1);
}

TEST(TraceFormatTest, TimesAreMicrosecondsOnOurClock) {
  TraceFormat format(1, 5'000'000'000);
  const auto value =
      One(format, {1'000'001'234, 2'005, EventPhase::kComplete, "a", "X", ""}, 4'000'000'000)
          .back();
  EXPECT_EQ(value["ph"].text, "X");
  EXPECT_DOUBLE_EQ(value["ts"].number, 1.234);
  EXPECT_DOUBLE_EQ(value["dur"].number, 2.005);
}

TEST(TraceFormatTest, ImpossibleTimesStayJson) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
  for (const int64_t time_ns : {kLowest, kHighest, int64_t{-1}}) {
    for (const int64_t other_ns : {kLowest, kHighest, int64_t{0}}) {
      TraceFormat format(1, 77);
      const auto complete =
          One(format, {time_ns, other_ns, EventPhase::kComplete, "a", "X", ""}, other_ns).back();
      EXPECT_GE(complete["ts"].number, 0);
      EXPECT_GE(complete["dur"].number, 0);
      const std::vector<TimelineEvent> pair = {Begin(time_ns, "A"), End(other_ns, "A")};
      const auto both = Parse(format.Format(0, pair, other_ns).records).back();
      EXPECT_GE(both["ts"].number, 0);
      EXPECT_GE(both["dur"].number, 0);
    }
  }
}

TEST(TraceFormatTest, LanesStayWellFormedWhateverWasDropped) {
  TraceFormat format(1, 0);
  EXPECT_EQ(OneByOne(format, {End(1, "LOST")}), Words{});
  EXPECT_EQ(OneByOne(format, {Begin(1, "A"), Begin(2, "B"), End(3, "B"), End(4, "A")}),
            (Words{"B A", "B B", "E B", "E A"}));
  EXPECT_EQ(OneByOne(format, {Begin(1, "A"), Begin(2, "B"), End(3, "A"), End(4, "B")}),
            (Words{"B A", "B B", "E B", "E A"}));
  EXPECT_EQ(OneByOne(format, {Begin(1, "A"), Begin(2, "C")}), (Words{"B A", "B C"}));
  const auto footer = Parse(format.Footer({5}));
  ASSERT_EQ(footer.size(), 3U);
  EXPECT_EQ(footer[0]["ph"].text + footer[0]["name"].text, "EC");
  EXPECT_EQ(footer[1]["ph"].text + footer[1]["name"].text, "EA");
  EXPECT_EQ(footer[2]["args"]["dropped_events"].number, 5);
}

TEST(TraceFormatTest, WhatBeginsAndEndsTogetherIsOneRecord) {
  TraceFormat format(1, 0);
  const std::vector<TimelineEvent> events = {Begin(1000, "A"), Begin(2000, "B"), End(5000, "B"),
                                             End(9000, "A")};
  const auto& [records, needed] = format.Format(0, events, 0);
  const auto values = Parse(records);
  ASSERT_EQ(Phases(values), (Words{"X A", "X B"}));
  EXPECT_DOUBLE_EQ(values[2]["ts"].number, 1);
  EXPECT_DOUBLE_EQ(values[2]["dur"].number, 8);
  EXPECT_DOUBLE_EQ(values[3]["ts"].number, 2);
  EXPECT_DOUBLE_EQ(values[3]["dur"].number, 3);
  EXPECT_EQ(needed, (std::vector<size_t>{3, 4, 4, 3})) << "two of metadata come first";
  EXPECT_EQ(Parse(format.Footer({0})).size(), 1U) << "nothing is open";
}

TEST(TraceFormatTest, WhatEndsLaterIsShownFromItsBeginningOn) {
  TraceFormat format(1, 0);
  EXPECT_EQ(Together(format, {Begin(1, "A"), Begin(2, "B"), End(3, "B"), Begin(4, "C")}),
            (Words{"B A", "X B", "B C"}));
  EXPECT_EQ(Together(format, {Begin(5, "D"), End(6, "A"), Begin(7, "E"), End(8, "E")}),
            (Words{"X D", "E C", "E A", "X E"}))
      << "what is inside ends with it";
  EXPECT_EQ(Together(format, {End(9, "A"), End(9, "C"), End(9, "D")}), Words{});
  const auto& [records, needed] = format.Format(0, {}, 0);
  EXPECT_EQ(records.size() + needed.size(), 0U);
}

TEST(TraceFormatTest, DepthAndLanesAreBounded) {
  TraceFormat format(1, 0);
  EXPECT_EQ(Together(format, std::vector<TimelineEvent>(1000, Begin(1, "N"))).size(),
            TraceFormat::kMaxDepth);

  std::vector<JsonValue> last;
  for (size_t i = 0; i < TraceFormat::kMaxLaneCount + 100; ++i) {
    last = One(format, {1, 0, EventPhase::kInstant, "lane" + std::to_string(i), "N", ""});
  }
  ASSERT_EQ(last.size(), 1U);  // No lane of its own any more.
  EXPECT_EQ(last[0]["tid"].number, TraceFormat::kMaxLaneCount);
}

// The thread of each call's ENQUEUE, with what is shown there.
class CallLanesTest : public ::testing::Test {
 protected:
  std::vector<JsonValue> Put(const std::string& lane, EventPhase phase, std::string_view name) {
    return One(format_, {++time_ns_, 0, phase, lane, std::string(name), ""});
  }
  double Begin(const std::string& lane) {
    const auto records = Put(lane, EventPhase::kBegin, event_name::kEnqueue);
    EXPECT_EQ(records.back()["args"]["detail"].text, lane);
    Put(lane, EventPhase::kEnd, event_name::kEnqueue);
    return records.back()["tid"].number;
  }
  void Complete(const std::string& lane) { Put(lane, EventPhase::kInstant, event_name::kComplete); }

  int64_t time_ns_ = 0;
  TraceFormat format_{1, 0};
};

TEST_F(CallLanesTest, AreAsManyAsAreInFlight) {
  EXPECT_EQ(Begin("allreduce.noname.1"), 1);
  EXPECT_EQ(Begin("allreduce.noname.2"), 2);
  Complete("allreduce.noname.1");
  EXPECT_EQ(Begin("allreduce.noname.3"), 1);
  EXPECT_EQ(Begin("allreduce.noname.4"), 3);
  EXPECT_EQ(Begin("barrier.noname.1"), 4) << "of another kind";
  for (const int number : {2, 3, 4}) Complete("allreduce.noname." + std::to_string(number));
  for (int number = 5; number < 2000; number += 3) {
    std::set<double> threads;
    for (int i = 0; i < 3; ++i) {
      threads.insert(Begin("allreduce.noname." + std::to_string(number + i)));
    }
    EXPECT_EQ(threads, (std::set<double>{1, 2, 3}));
    for (int i = 0; i < 3; ++i) Complete("allreduce.noname." + std::to_string(number + i));
  }
}

TEST_F(CallLanesTest, AreNamedByWhatCallsHaveInCommon) {
  const auto records = Put("grouped.noname.17.1", EventPhase::kBegin, event_name::kEnqueue);
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0]["args"]["name"].text, "grouped.noname.1");
}

// Calls that fail end as they are.
TEST_F(CallLanesTest, AreHandedOnWithNothingOpen) {
  Put("x.noname.1", EventPhase::kBegin, "NEGOTIATE");
  const auto records = Put("x.noname.1", EventPhase::kInstant, event_name::kComplete);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1]["ph"].text + records[1]["name"].text, "ENEGOTIATE");
  EXPECT_EQ(Begin("x.noname.2"), 1);
}

TEST(TraceFormatTest, TheLongestTextsFitIntoARecord) {
  TraceFormat format(1, std::numeric_limits<int64_t>::min());
  const std::string hostile(5000, '\0');  // Sixfold when escaped.
  size_t count = 0;
  const auto check = [&count](const TraceRecords& records) {
    count += Parse(records).size();
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_LE(records[i].size(), TraceFile::kMaxRecordBytes);
    }
  };
  check(format.Header({hostile}));
  for (const EventPhase phase :
       {EventPhase::kBegin, EventPhase::kEnd, EventPhase::kInstant, EventPhase::kComplete}) {
    constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
    const TimelineEvent event{-2, kHighest, phase, hostile, hostile, hostile};
    check(format.Format(0, {&event, 1}, 0).records);
  }
  EXPECT_EQ(count, 2U + 2 + 4);
}

}  // namespace
}  // namespace mydist
