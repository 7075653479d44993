#include "engine/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "conformance/sanitizers.h"
#include "conformance/status_checks.h"
#include "engine/engine_job.h"
#include "engine/flight_dumper.h"

namespace mydist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Request Named(const std::string& name, std::vector<int64_t> dims = {2, 3}) {
  Request request;
  request.name = name;
  request.shape = Shape(std::move(dims));
  return request;
}

TimePoint At(int64_t ns) { return TimePoint(std::chrono::nanoseconds(ns)); }

std::filesystem::path FreshFolder(const std::string& name) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("mydist_recorder_" + name + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  return folder;
}

std::string ContentOf(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(FlightRecorder, KnowsWhatHasEndedWellLast) {
  FlightRecorder recorder;
  EXPECT_FALSE(recorder.LastDone());
  const int64_t slow = recorder.Submitted(Named("slow"), At(1));
  const int64_t fused = recorder.Submitted(Named("fused"), At(2));
  const int64_t last = recorder.Submitted(Named("last of the fused"), At(3));
  const int64_t failed = recorder.Submitted(Named("failed"), At(4));
  EXPECT_FALSE(recorder.LastDone());
  for (const int64_t record : {slow, last, fused}) {
    recorder.Begun(record, recorder.NextRun(0), At(5));
  }
  recorder.Ended(fused, StatusCode::kOk, At(6));
  recorder.Ended(last, StatusCode::kOk, At(6));
  ASSERT_TRUE(recorder.LastDone());
  EXPECT_EQ(recorder.LastDone()->NameText(), "fused");  // It ran behind the other one.
  EXPECT_EQ(recorder.LastDone()->run, 3);
  recorder.Ended(slow, StatusCode::kOk, At(7));
  recorder.Ended(failed, StatusCode::kPeerLost, At(8));
  EXPECT_EQ(recorder.LastDone()->NameText(), "slow");
}

// The goal is 0.1 us for an operation. Of many short runs the fastest counts: the machine may be
// busy.
TEST(FlightRecorder, CostsLittle) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer makes it slow";
  constexpr int kRuns = 50;
  constexpr int kOperations = 1000;
  FlightRecorder recorder;
  const Request request = Named("a gradient with a name of usual length");
  Duration fastest = Duration::max();
  for (int run = 0; run < kRuns; ++run) {
    const TimePoint begin = Now();
    for (int i = 0; i < kOperations; ++i) {
      const int64_t record = recorder.Submitted(request, At(1));
      recorder.Begun(record, recorder.NextRun(0), At(2));
      recorder.Ended(record, StatusCode::kOk, At(3));
    }
    fastest = std::min(fastest, Now() - begin);
  }
  EXPECT_EQ(recorder.submitted_count(), kRuns * kOperations);
  const double microseconds = 1e6 * ToSeconds(fastest) / kOperations;
  RecordProperty("microseconds_per_operation", std::to_string(microseconds));
  EXPECT_LT(microseconds, 5 * 0.1);
}

TEST(FlightRecorder, TellsHowFarAnOperationHasCome) {
  FlightRecorder recorder;
  const int64_t waiting = recorder.Submitted(Named("waiting"), At(1));
  const int64_t running = recorder.Submitted(Named("running"), At(2));
  recorder.Begun(running, recorder.NextRun(0), At(3));
  const int64_t done = recorder.Submitted(Named("done", {4, 5, 6, 7, 8, 2}), At(4));
  recorder.Begun(done, recorder.NextRun(0), At(5));
  recorder.Ended(done, StatusCode::kOk, At(6));
  const int64_t failed = recorder.Submitted(Named("failed"), At(7));
  recorder.Ended(failed, StatusCode::kMismatch, At(8));
  const std::vector<FlightRecord> records = recorder.Read();
  ASSERT_EQ(records.size(), 4U);
  EXPECT_EQ(records[0].number, waiting);
  EXPECT_EQ(records[0].state, FlightState::kWaiting);
  EXPECT_EQ(records[0].NameText(), "waiting");
  EXPECT_EQ(records[0].element_count, 6);
  EXPECT_EQ(records[1].state, FlightState::kRunning);
  EXPECT_EQ(records[1].run, 1);
  EXPECT_EQ(records[2].state, FlightState::kDone);
  EXPECT_EQ(records[2].run, 2);
  EXPECT_EQ(records[2].submitted_ns, 4);
  EXPECT_EQ(records[2].begun_ns, 5);
  EXPECT_EQ(records[2].ended_ns, 6);
  EXPECT_EQ(records[2].dim_count, 6);
  EXPECT_THAT(records[2].dims, ElementsAre(4, 5, 6, 7, 8));
  EXPECT_EQ(records[2].element_count, 4 * 5 * 6 * 7 * 8 * 2);
  EXPECT_EQ(records[3].state, FlightState::kFailed);
  EXPECT_EQ(records[3].code, static_cast<uint8_t>(StatusCode::kMismatch));
  EXPECT_EQ(records[3].run, 0);
}

TEST(FlightRecorder, KeepsTheLastOperationsAndNoEventOfEarlierOnes) {
  FlightRecorder recorder;
  constexpr auto kCapacity = static_cast<int64_t>(FlightRecorder::kCapacity);
  const int64_t first = recorder.Submitted(Named("a rather long name of the first one"), At(1));
  for (int64_t i = 0; i < kCapacity; ++i) recorder.Submitted(Named(std::to_string(i)), At(2));
  recorder.Ended(first, StatusCode::kOk, At(3));
  const std::vector<FlightRecord> records = recorder.Read();
  ASSERT_EQ(records.size(), FlightRecorder::kCapacity);
  EXPECT_EQ(recorder.submitted_count(), kCapacity + 1);
  for (int64_t i = 0; i < kCapacity; ++i) {
    const FlightRecord& record = records[static_cast<size_t>(i)];
    EXPECT_EQ(record.number, i + 2);
    EXPECT_EQ(record.NameText(), std::to_string(i));
    EXPECT_EQ(record.state, FlightState::kWaiting);
  }
}

TEST(FlightRecorder, KeepsBothEndsOfALongName) {
  FlightRecorder recorder;
  const std::string whole(FlightRecord::kNameBytes, 'w');
  const std::string begin(FlightRecord::kNameBytes / 2, 'b');
  const std::string end(FlightRecord::kNameBytes / 2, 'e');
  recorder.Submitted(Named(whole), At(1));
  recorder.Submitted(Named(begin + "x" + end), At(1));
  recorder.Submitted(Named(begin + "y" + end), At(1));
  const std::vector<FlightRecord> records = recorder.Read();
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].NameText(), whole);
  EXPECT_FALSE(records[0].is_name_cut());
  EXPECT_EQ(records[1].NameText(), begin + "…" + end);
  EXPECT_EQ(records[1].name_bytes, whole.size() + 1);
  EXPECT_NE(records[1].name_hash, records[2].name_hash);
}

// Each record has one letter and one number, in all its places: a torn one would mix them.
TEST(FlightRecorder, ShowsNoTornRecordWhileThreadsWrite) {
  FlightRecorder recorder;
  std::atomic<bool> goes_on{true};
  std::atomic<int64_t> written{0};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 3; ++writer) {
    writers.emplace_back([&, writer] {
      const int64_t mark = writer + 1;
      const std::string name(static_cast<size_t>(40 * mark), static_cast<char>('a' + writer));
      while (goes_on.load()) {
        Request request = Named(name, {mark, mark, mark});
        request.process_set = static_cast<ProcessSetId>(mark);
        const int64_t record = recorder.Submitted(request, At(mark));
        recorder.Begun(record, mark, At(mark));
        recorder.Ended(record, StatusCode::kOk, At(mark));
        written.fetch_add(1);
      }
    });
  }
  constexpr auto kCapacity = static_cast<int64_t>(FlightRecorder::kCapacity);
  int64_t seen = 0;
  while (written.load() < 20 * kCapacity || seen < 20 * kCapacity) {
    for (const FlightRecord& record : recorder.Read()) {
      ++seen;
      const int64_t mark = record.submitted_ns;
      ASSERT_THAT(mark, ::testing::AllOf(::testing::Ge(1), ::testing::Le(3)));
      EXPECT_EQ(record.process_set, mark);
      EXPECT_EQ(record.element_count, mark * mark * mark);
      EXPECT_TRUE(record.run == 0 || record.run == mark);
      EXPECT_TRUE(record.ended_ns == 0 || record.ended_ns == mark);
      EXPECT_EQ(record.NameText(),
                std::string(static_cast<size_t>(40 * mark), static_cast<char>('a' + mark - 1)));
    }
  }
  goes_on.store(false);
  for (std::thread& writer : writers) writer.join();
  // A slot keeps an older record where a writer has given up.
  EXPECT_EQ(recorder.Read().size(), FlightRecorder::kCapacity);
}

FlightDumpHeader HeaderOf(int rank) {
  return {.rank = rank,
          .size = 4,
          .host = "host \"a\"",
          .pid = 71,
          .version = "1.2",
          .reason = "stall",
          .message = "it waits"};
}

TEST(FlightDump, HasAHeaderTheRecordsAndAnEnd) {
  FlightRecorder recorder;
  Request broadcast = Named("weights \n", {7});
  broadcast.op = OpKind::kBroadcast;
  broadcast.root_rank = 2;
  recorder.Submitted(broadcast, At(5));
  recorder.Joined(At(6));
  ProcessSet set;
  set.id = 3;
  set.ranks = {1, 2};
  recorder.NoteProcessSet(set);
  std::istringstream text(FlightDumpText(HeaderOf(1), recorder));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_THAT(lines[0], HasSubstr(R"({"mydist_flight_recorder":1,"version":"1.2","rank":1,)"));
  EXPECT_THAT(lines[0], HasSubstr(R"("host":"host \"a\"","pid":71,"reason":"stall",)"));
  EXPECT_THAT(lines[0], HasSubstr(R"("submitted":2,"dropped":0,"process_sets":{"3":[1,2]}})"));
  EXPECT_EQ(lines[1],
            R"({"n":1,"set":0,"run":0,"op":"broadcast","dtype":"float32","shape":[7],"dims":1,)"
            R"("elements":7,"device":"CPU","root":2,"name":"weights \u000a","state":"waiting",)"
            R"("submitted_ns":5,"begun_ns":0,"ended_ns":0})");
  EXPECT_THAT(lines[2], HasSubstr(R"("op":"join","name":"join")"));
  EXPECT_EQ(lines[3], R"({"end":2})");
}

TEST(FlightDump, ReplacesItsFileAndFollowsNoLink) {
  const auto folder = FreshFolder("dump") / "below";
  const std::string name = FlightDumpName(FlightDumpKind::kJob, 3);
  EXPECT_EQ(name, "flight_recorder_rank3.json");
  ExpectOk(WriteFlightDump(folder, name, "first"));
  ExpectOk(WriteFlightDump(folder, name, "second"));
  EXPECT_EQ(ContentOf(folder / name), "second");
  struct stat info {};
  ASSERT_EQ(stat((folder / name).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  const auto victim = folder / "victim";
  std::ofstream(victim) << "untouched";
  std::filesystem::remove(folder / name);
  std::filesystem::create_symlink(victim, folder / name);
  ExpectOk(WriteFlightDump(folder, name, "third"));
  EXPECT_EQ(ContentOf(victim), "untouched");
  EXPECT_EQ(ContentOf(folder / name), "third");
  const Status refused = WriteFlightDump(victim, name, "fourth");
  EXPECT_EQ(refused.code(), StatusCode::kInternal);
  EXPECT_THAT(refused.message(), HasSubstr("cannot write the flight recorder to"));
  std::filesystem::remove_all(folder.parent_path());
}

FlightDumperOptions OptionsFor(const std::filesystem::path& folder) {
  return {.folder = folder, .header = HeaderOf(0)};
}

TEST(FlightDumper, WritesWhatWasRequestedBeforeItEnds) {
  const auto folder = FreshFolder("request");
  auto recorder = std::make_shared<FlightRecorder>();
  recorder->Submitted(Named("lost"), At(1));
  {
    const auto dumper = FlightDumper::Start(recorder, OptionsFor(folder));
    ASSERT_NE(dumper, nullptr);
    dumper->Request(FlightOccasion::kStall, "a stall");
    dumper->Request(FlightOccasion::kFailure, "the first failure");
    dumper->Request(FlightOccasion::kFailure, "a consequence");
  }
  const std::string text = ContentOf(folder / FlightDumpName(FlightDumpKind::kJob, 0));
  EXPECT_THAT(text, HasSubstr(R"("reason":"failure","message":"the first failure")"));
  EXPECT_THAT(text, HasSubstr(R"("name":"lost")"));
  std::filesystem::remove_all(folder);
}

TEST(FlightDumper, WithoutAFolderOnlyASignalMakesItWrite) {
  const auto folder = FreshFolder("default");
  std::filesystem::create_directories(folder);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  {
    const auto dumper = FlightDumper::Start(std::make_shared<FlightRecorder>(), OptionsFor(""));
    dumper->Request(FlightOccasion::kFailure, "a failure");
  }
  std::filesystem::current_path(before);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

void AwaitFile(const std::filesystem::path& path) {
  while (!std::filesystem::exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// In a process of its own each: what is installed stays.
[[noreturn]] void QuitInChild(const std::filesystem::path& folder) {
  if (!InstallQuitHandler() || InstallQuitHandler()) _exit(2);
  const auto dumper = FlightDumper::Start(std::make_shared<FlightRecorder>(), OptionsFor(folder));
  raise(SIGQUIT);
  AwaitFile(folder / FlightDumpName(FlightDumpKind::kJob, 0));
  std::filesystem::remove(folder / FlightDumpName(FlightDumpKind::kJob, 0));
  if (const pid_t child = fork(); child == 0) {
    raise(SIGQUIT);  // It has nothing to dump, and goes on.
    _exit(7);
  } else {
    int status = 0;
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) != 7 || !WIFEXITED(status)) _exit(3);
  }
  // One that is sent to itself is no request to dump; the next one is.
  if (!SendQuitToSelf()) _exit(4);
  std::signal(SIGQUIT, SIG_IGN);
  if (SendQuitToSelf() || InstallQuitHandler()) _exit(5);
  if (std::filesystem::exists(folder / FlightDumpName(FlightDumpKind::kJob, 0))) _exit(6);
  _exit(0);
}

TEST(QuitSignal, MakesAProcessDumpAndGoOn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto folder = FreshFolder("quit");
  EXPECT_EXIT(QuitInChild(folder), ::testing::ExitedWithCode(0), "");
  std::filesystem::remove_all(folder);
}

[[noreturn]] void StallWithoutFolder() {
  static_cast<void>(InstallQuitHandler());
  FlightDumperOptions options = OptionsFor("");
  options.tells_user = true;
  const auto dumper = FlightDumper::Start(std::make_shared<FlightRecorder>(), options);
  for (int i = 0; i < 2; ++i) dumper->Request(FlightOccasion::kStall, "a stall");
  _exit(0);
}

TEST(QuitSignal, IsToldOnceAtAStallWithoutAFolder) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(StallWithoutFolder(), ::testing::ExitedWithCode(0),
              "^[^\n]*SIGQUIT [^\n]* makes each rank write its last operations to "
              "[^\n]*/mydist_flight_recorder; [^\n]*\n$");
}

TEST(EngineRecords, SameRunsOnEveryRankAlsoWhenFrozen) {
  constexpr int kSteps = 60;
  EngineJob job(2, {.shares_memory = true});
  job.OnEveryRank([](EngineRank& rank) {
    std::vector<float> data(8, 1.0F);
    for (int step = 0; step < kSteps; ++step) ExpectOk(rank.Run(Allreduce("gradient", &data)));
    EXPECT_GT(rank.engine->stats().frozen_steps, 0);
    const std::vector<FlightRecord> records = rank.engine->recorder().Read();
    ASSERT_EQ(records.size(), static_cast<size_t>(kSteps));
    for (int step = 0; step < kSteps; ++step) {
      const FlightRecord& record = records[static_cast<size_t>(step)];
      EXPECT_EQ(record.run, step + 1);
      EXPECT_EQ(record.state, FlightState::kDone);
      EXPECT_EQ(record.NameText(), "gradient");
      EXPECT_LE(record.submitted_ns, record.begun_ns);
      EXPECT_LE(record.begun_ns, record.ended_ns);
    }
  });
}

TEST(EngineRecords, AnErrorOfOneTensorAndWhatJoinedRanksExecute) {
  EngineJob job(2, {});
  job.OnEveryRank([](EngineRank& rank) {
    std::vector<float> data(rank.rank() == 0 ? 4 : 5, 1.0F);
    EXPECT_EQ(rank.Run(Allreduce("uneven", &data)).code(), StatusCode::kMismatch);
    data.resize(4);
    if (rank.rank() == 0) ExpectOk(rank.Run(Allreduce("alone", &data)));
    ExpectOk(rank.Wait(rank.engine->Join(nullptr)));
    std::vector<Submission> twice;
    for (int i = 0; i < 2; ++i) twice.push_back(Allreduce("twice", &data));
    EXPECT_EQ(rank.engine->Submit(std::move(twice)).status().code(), StatusCode::kInvalidArgument);
    std::vector<std::string> texts;
    for (const FlightRecord& record : rank.engine->recorder().Read()) {
      texts.push_back(record.NameText() + " " + std::to_string(record.run) + " " +
                      std::to_string(record.code));
    }
    const std::string failed =
        "uneven 0 " + std::to_string(static_cast<int>(StatusCode::kMismatch));
    EXPECT_THAT(texts, ::testing::UnorderedElementsAre(failed, "alone 1 0", "join 0 0", "twice 0 1",
                                                       "twice 0 1"));
  });
}

}  // namespace
}  // namespace mydist
