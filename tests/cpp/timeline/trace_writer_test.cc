#include "timeline/trace_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <random>

#include "base/clock.h"
#include "conformance/deep.h"
#include "timeline/json_value.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;
using testing::JsonValue;
using testing::ParseJson;
using testing::ReadFile;
using testing::TemporaryFolder;

int64_t NowNanoseconds() { return Now().time_since_epoch().count(); }

std::vector<TimelineEvent> Pair(const std::string& lane, const std::string& name) {
  const int64_t now = NowNanoseconds();
  return {{now, 0, EventPhase::kBegin, lane, name, "detail"},
          {now + 1000, 0, EventPhase::kEnd, lane, name, ""}};
}

// The records of a trace file; fails the test when it is no JSON array.
std::vector<JsonValue> Records(const std::string& path) {
  const auto value = ParseJson(ReadFile(path));
  EXPECT_TRUE(value.has_value());
  return value.value_or(JsonValue{}).items;
}

int64_t CountPhase(const std::vector<JsonValue>& records, const std::string& phase, int rank) {
  return std::count_if(records.begin(), records.end(), [&](const JsonValue& record) {
    return record["ph"].text == phase && record["pid"].number == rank;
  });
}

const JsonValue& FooterOf(const std::vector<JsonValue>& records, int rank) {
  static const JsonValue kMissing;
  for (const JsonValue& record : records) {
    if (record["name"].text == "mydist_rank" && record["pid"].number == rank) return record["args"];
  }
  return kMissing;
}

TEST(TraceWriterTest, EventsOfAllRanksAreInOneFile) {
  TemporaryFolder folder;
  auto writer = TraceWriter::Open(folder / "t.json", 2, {"alpha", "beta"});
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  (*writer)->Append(0, Pair("x", "NEGOTIATE"), 0);
  (*writer)->Append(1, Pair("x", "NEGOTIATE"), 500);
  (*writer)->Append(1, Pair("x", "ALLREDUCE"), 500);
  (*writer)->SetDroppedCount(1, 42);
  ASSERT_TRUE((*writer)->Close().ok());
  const auto records = Records(folder / "t.json");
  EXPECT_EQ(CountPhase(records, "X", 0), 1);
  EXPECT_EQ(CountPhase(records, "X", 1), 2);
  EXPECT_EQ(records[0]["args"]["name"].text, "rank 0 (alpha)");
  EXPECT_EQ(FooterOf(records, 0)["dropped_events"].number, 0);
  EXPECT_EQ(FooterOf(records, 1)["dropped_events"].number, 42);
  EXPECT_EQ(FooterOf(records, 1)["clock_offset_ns"].number, 500);
}

TEST(TraceWriterTest, RanksOutsideTheJobAreIgnored) {
  TemporaryFolder folder;
  auto writer = TraceWriter::Open(folder / "t.json", 2);
  ASSERT_TRUE(writer.ok());
  for (const int rank : {-1, 2, 1 << 30}) {
    (*writer)->Append(rank, Pair("x", "FUSE"), 0);
    (*writer)->SetDroppedCount(rank, 1);
  }
  ASSERT_TRUE((*writer)->Close().ok());
  for (const JsonValue& record : Records(folder / "t.json")) EXPECT_EQ(record["ph"].text, "M");
}

TEST(TraceWriterTest, ClosedWriterCountsWhatComesLater) {
  TemporaryFolder folder;
  auto writer = TraceWriter::Open(folder / "t.json", 1);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Close().ok());
  const std::string text = ReadFile(folder / "t.json");
  (*writer)->Append(0, Pair("x", "FUSE"), 0);
  (*writer)->Flush();
  EXPECT_EQ((*writer)->dropped_count(), 2);
  EXPECT_TRUE((*writer)->Close().ok());
  EXPECT_EQ(ReadFile(folder / "t.json"), text);
}

TEST(TraceWriterTest, MoreThanMayWaitIsDroppedAndCounted) {
  TemporaryFolder folder;
  auto writer = TraceWriter::Open(folder / "t.json", 1);
  ASSERT_TRUE(writer.ok());
  const TimelineEvent event{1, 0, EventPhase::kInstant, "x", "N", ""};
  const auto too_many = static_cast<int64_t>(TraceWriter::kMaxWaitingEventCount) + 1;
  (*writer)->Append(0, std::vector<TimelineEvent>(static_cast<size_t>(too_many), event), 0);
  EXPECT_EQ((*writer)->dropped_count(), too_many);
  (*writer)->Append(0, {event}, 0);  // What fits is written all the same.
  ASSERT_TRUE((*writer)->Close().ok());
  const auto records = Records(folder / "t.json");
  EXPECT_EQ(CountPhase(records, "i", 0), 1);
  EXPECT_EQ(FooterOf(records, 0)["dropped_events"].number, too_many);
}

TEST(TraceWriterTest, FullDiskEndsTheTimelineWithOneWarning) {
  TemporaryFolder folder;
  auto writer = TraceWriter::Open(folder / "t.json", 1);
  ASSERT_TRUE(writer.ok());
  // SIGXFSZ keeps its default, which ends a process: the writer must not let it come to that.
  ASSERT_EQ(signal(SIGXFSZ, SIG_DFL), SIG_DFL);
  rlimit previous{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &previous), 0);
  const rlimit limited{20000, previous.rlim_max};
  ::testing::internal::CaptureStderr();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  constexpr int64_t kPairCount = 1000;
  for (int64_t i = 0; i < kPairCount; ++i) {
    (*writer)->Append(0, Pair("x", "REDUCE"), 0);
    if (i % 100 == 0) (*writer)->Flush();
  }
  const Status status = (*writer)->Close();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &previous), 0);
  const std::string log = ::testing::internal::GetCapturedStderr();

  EXPECT_THAT(status.message(), HasSubstr("cannot write to the timeline '" + folder.path()));
  EXPECT_THAT(log, HasSubstr("the timeline ends here, the job continues without it"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  const auto records = Records(folder / "t.json");
  const int64_t written = 2 * CountPhase(records, "X", 0);
  EXPECT_GT(written, 50);
  EXPECT_EQ(written + (*writer)->dropped_count(), 2 * kPairCount);
}

}  // namespace
}  // namespace mydist
