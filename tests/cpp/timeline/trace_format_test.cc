#include "timeline/trace_format.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "timeline/json_value.h"
#include "timeline/trace_file.h"

namespace mydist {
namespace {

using testing::JsonValue;
using testing::ParseJson;

std::vector<JsonValue> Parse(const std::vector<std::string>& records) {
  std::vector<JsonValue> values;
  for (const std::string& record : records) {
    const auto value = ParseJson(record);
    EXPECT_TRUE(value.has_value()) << record;
    values.push_back(value.value_or(JsonValue{}));
  }
  return values;
}

// The records of some events of rank 0 without the metadata, as "phase name" words.
std::vector<std::string> Phases(TraceFormat& format, const std::vector<TimelineEvent>& events) {
  std::vector<std::string> records;
  for (const TimelineEvent& event : events) format.Format(0, event, 0, records);
  std::vector<std::string> words;
  for (const JsonValue& value : Parse(records)) {
    if (value["ph"].text != "M") words.push_back(value["ph"].text + " " + value["name"].text);
  }
  return words;
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
  std::vector<std::string> records;
  format.Format(0, {1000, 0, EventPhase::kInstant, "a", "ENQUEUE", ""}, 0, records);
  format.Format(0, {2000, 0, EventPhase::kInstant, "b", "ENQUEUE", ""}, 0, records);
  format.Format(0, {3000, 0, EventPhase::kInstant, "a", "COMPLETE", ""}, 0, records);
  format.Format(1, {4000, 0, EventPhase::kInstant, "b", "ENQUEUE", ""}, 0, records);
  const auto values = Parse(records);
  ASSERT_EQ(values.size(), 4U + 3 * 2);  // Two records of metadata per new lane.
  EXPECT_EQ(values[0]["name"].text, "thread_name");
  EXPECT_EQ(values[0]["args"]["name"].text, "a");
  EXPECT_EQ(values[0]["tid"].number, 1);
  EXPECT_EQ(values[2]["tid"].number, 1);
  EXPECT_EQ(values[5]["tid"].number, 2);
  EXPECT_EQ(values[6]["tid"].number, 1);
  EXPECT_EQ(values[6]["name"].text, "COMPLETE");
  EXPECT_EQ(values[9]["pid"].number, 1);
  EXPECT_EQ(values[9]["tid"].number, 1);
}

TEST(TraceFormatTest, TimesAreMicrosecondsOnOurClock) {
  TraceFormat format(1, 5'000'000'000);
  std::vector<std::string> records;
  format.Format(0, {1'000'001'234, 2'005, EventPhase::kComplete, "a", "X", ""}, 4'000'000'000,
                records);
  const auto value = Parse(records).back();
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
      std::vector<std::string> records;
      format.Format(0, {time_ns, other_ns, EventPhase::kComplete, "a", "X", ""}, other_ns, records);
      const auto value = Parse(records).back();
      EXPECT_GE(value["ts"].number, 0);
      EXPECT_GE(value["dur"].number, 0);
    }
  }
}

TEST(TraceFormatTest, ArgsAreShownAsDetail) {
  TraceFormat format(1, 0);
  std::vector<std::string> records;
  format.Format(0, {1, 0, EventPhase::kBegin, "a", "FUSE", "3 \"tensors\""}, 0, records);
  EXPECT_EQ(Parse(records).back()["args"]["detail"].text, "3 \"tensors\"");
}

TEST(TraceFormatTest, LanesStayWellFormedWhateverWasDropped) {
  TraceFormat format(1, 0);
  const auto begin = [](const char* name) {
    return TimelineEvent{1, 0, EventPhase::kBegin, "a", name, ""};
  };
  const auto end = [](const char* name) {
    return TimelineEvent{2, 0, EventPhase::kEnd, "a", name, ""};
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(Phases(format, {end("LOST")}), Words{});
  EXPECT_EQ(Phases(format, {begin("A"), begin("B"), end("B"), end("A")}),
            (Words{"B A", "B B", "E B", "E A"}));
  EXPECT_EQ(Phases(format, {begin("A"), begin("B"), end("A"), end("B")}),
            (Words{"B A", "B B", "E B", "E A"}));
  EXPECT_EQ(Phases(format, {begin("A"), begin("C")}), (Words{"B A", "B C"}));
  const auto footer = Parse(format.Footer({5}));
  ASSERT_EQ(footer.size(), 3U);
  EXPECT_EQ(footer[0]["ph"].text + footer[0]["name"].text, "EC");
  EXPECT_EQ(footer[1]["ph"].text + footer[1]["name"].text, "EA");
  EXPECT_EQ(footer[2]["args"]["dropped_events"].number, 5);
}

TEST(TraceFormatTest, DepthAndLanesAreBounded) {
  TraceFormat format(1, 0);
  std::vector<TimelineEvent> deep(1000, {1, 0, EventPhase::kBegin, "a", "N", ""});
  EXPECT_EQ(Phases(format, deep).size(), TraceFormat::kMaxDepth);

  std::vector<std::string> records;
  for (size_t i = 0; i < TraceFormat::kMaxLaneCount + 100; ++i) {
    records.clear();
    format.Format(0, {1, 0, EventPhase::kInstant, "lane" + std::to_string(i), "N", ""}, 0, records);
  }
  ASSERT_EQ(records.size(), 1U);  // No lane of its own any more.
  EXPECT_EQ(Parse(records)[0]["tid"].number, TraceFormat::kMaxLaneCount);
}

// The thread of each call's ENQUEUE, with what is shown there.
class CallLanesTest : public ::testing::Test {
 protected:
  std::vector<JsonValue> Put(const std::string& lane, EventPhase phase, std::string_view name) {
    std::vector<std::string> records;
    format_.Format(0, {++time_ns_, 0, phase, lane, std::string(name), ""}, 0, records);
    return Parse(records);
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

// A user's name may look like one.
TEST_F(CallLanesTest, MayBeUsedAgainByTheSameCall) {
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(Begin("x.noname.7"), 1);
    EXPECT_EQ(Begin("x.noname.8"), 2);
    Complete("x.noname.7");
    Complete("x.noname.8");
  }
}

// Calls that fail end as they are.
TEST_F(CallLanesTest, AreHandedOnWithNothingOpen) {
  Put("x.noname.1", EventPhase::kBegin, "NEGOTIATE");
  const auto records = Put("x.noname.1", EventPhase::kInstant, event_name::kComplete);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1]["ph"].text + records[1]["name"].text, "ENEGOTIATE");
  EXPECT_EQ(Begin("x.noname.2"), 1);
}

TEST_F(CallLanesTest, OfPhasesAreThatOfTheCall) {
  Begin("x.noname.1");
  Begin("x.noname.2");
  EXPECT_EQ(Put("x.noname.1", EventPhase::kBegin, "NEGOTIATE").back()["tid"].number, 1);
  EXPECT_EQ(Put("x.noname.2", EventPhase::kBegin, "NEGOTIATE").back()["tid"].number, 2);
  Complete("x.noname.2");
  EXPECT_EQ(Put("x.noname.1", EventPhase::kEnd, "NEGOTIATE").back()["tid"].number, 1);
}

TEST(TraceFormatTest, TheLongestTextsFitIntoARecord) {
  TraceFormat format(1, std::numeric_limits<int64_t>::min());
  const std::string hostile(5000, '\0');  // Sixfold when escaped.
  std::vector<std::string> records = format.Header({hostile});
  for (const EventPhase phase :
       {EventPhase::kBegin, EventPhase::kEnd, EventPhase::kInstant, EventPhase::kComplete}) {
    constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
    format.Format(0, {-2, kHighest, phase, hostile, hostile, hostile}, 0, records);
  }
  EXPECT_EQ(Parse(records).size(), 2U + 2 + 4);
  for (const std::string& record : records) {
    EXPECT_LE(record.size(), TraceFile::kMaxRecordBytes);
  }
}

}  // namespace
}  // namespace mydist
