#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <latch>
#include <numeric>
#include <string>
#include <thread>

#include "conformance/deep.h"
#include "engine_job.h"

namespace mydist {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class EngineTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, EngineTest,
                         ::testing::ValuesIn(InDeep<std::vector<int>>({1, 2, 3, 4, 7}, {1, 2, 3, 7},
                                                                      {2, 3})));

float SumOfRanks(int size) { return static_cast<float>(size * (size + 1)) / 2; }

TEST_P(EngineTest, AllreduceSumsOverRanks) {
  EngineJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank) {
    std::vector<float> data(1000, static_cast<float>(rank.rank() + 1));
    ExpectOk(rank.Run(Allreduce("x", &data)));
    EXPECT_THAT(data, Each(SumOfRanks(rank.size())));
  });
}

// The caller scales and divides. Two numbers stand for an int64, one for any other integer.
TEST_P(EngineTest, AveragesOfIntegersAreSumsOfInt64WithoutFactors) {
  EngineJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank) {
    constexpr int64_t kLarge = int64_t{1} << 40;
    for (const DataType dtype : {DataType::kUint8, DataType::kInt32, DataType::kInt64}) {
      std::vector<int64_t> numbers(dtype == DataType::kInt64 ? 10 : 5, kLarge);
      Submission submission;
      submission.request = {.name = std::string(DataTypeName(dtype)),
                            .op = OpKind::kAllreduce,
                            .dtype = dtype,
                            .shape = Shape({5}),
                            .reduce_op = ReduceOp::kAverage,
                            .prescale = 0.5,
                            .postscale = 3.0};
      submission.input = submission.output = numbers.data();
      ExpectOk(rank.Run(std::move(submission)));
      EXPECT_THAT(numbers, Each(kLarge * rank.size()));
    }
  });
}

TEST_P(EngineTest, AlltoallDealsOutRowsAndTellsWhatCame) {
  EngineJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank) {
    // Rank r sends s+1 rows holding r*100+s to each rank s.
    std::vector<int32_t> input;
    std::vector<int64_t> splits;
    for (int s = 0; s < rank.size(); ++s) {
      input.insert(input.end(), static_cast<size_t>(s + 1), rank.rank() * 100 + s);
      splits.push_back(s + 1);
    }
    std::vector<int32_t> output;
    std::vector<int64_t> received;
    Submission submission = WithOutput(OpKind::kAlltoall, "a2a",
                                       Shape({static_cast<int64_t>(input.size())}), input, &output);
    submission.splits = splits;
    submission.on_numbers = [&](const std::vector<int64_t>& rows) { received = rows; };
    EXPECT_TRUE(rank.Run(std::move(submission)).ok());
    std::vector<int32_t> expected;
    for (int s = 0; s < rank.size(); ++s) {
      expected.insert(expected.end(), static_cast<size_t>(rank.rank() + 1), s * 100 + rank.rank());
    }
    EXPECT_EQ(output, expected);
    EXPECT_THAT(received, Each(rank.rank() + 1));
    EXPECT_EQ(received.size(), static_cast<size_t>(rank.size()));
  });
}

TEST_P(EngineTest, ReducescatterGivesTheFirstRanksTheExtraRows) {
  EngineJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank) {
    const int rows = 2 * rank.size() + 1;
    std::vector<int32_t> input(static_cast<size_t>(rows));
    std::iota(input.begin(), input.end(), 0);
    std::vector<int32_t> output;
    EXPECT_TRUE(
        rank.Run(WithOutput(OpKind::kReducescatter, "rs", Shape({rows}), input, &output)).ok());
    const int first = rank.rank() == 0 ? 0 : 2 * rank.rank() + 1;
    std::vector<int32_t> expected;
    for (int i = 0; i < (rank.rank() == 0 ? 3 : 2); ++i) {
      expected.push_back((first + i) * rank.size());
    }
    EXPECT_EQ(output, expected);
  });
}

TEST_P(EngineTest, AGroupCompletesUnderOneHandle) {
  EngineJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank) {
    std::vector<std::vector<float>> data(5, std::vector<float>(7, 1.0F));
    std::vector<Submission> group;
    for (size_t i = 0; i < data.size(); ++i) {
      group.push_back(Allreduce("g." + std::to_string(i), &data[i]));
      group.back().request.group = "g";
      group.back().request.group_size = 5;
    }
    EXPECT_TRUE(rank.Wait(rank.engine->Submit(std::move(group))).ok());
    for (const auto& tensor : data) EXPECT_THAT(tensor, Each(static_cast<float>(rank.size())));
  });
}

TEST(EngineErrors, MismatchReachesEveryRankAndTheNextCollectiveWorks) {
  for (const bool is_cached : {false, true}) {
    EngineJob job(3);
    job.OnEveryRank([&](EngineRank& rank) {
      std::vector<float> data(6, 1.0F);
      if (is_cached) {
        EXPECT_TRUE(rank.Run(Allreduce("w", &data)).ok());
      }
      std::vector<float> odd(rank.rank() == 1 ? 5 : 6, 1.0F);
      const Status mismatch = rank.Run(Allreduce("w", &odd));
      ExpectError(mismatch, StatusCode::kMismatch, {"'w'", "[5]", "[6]"});
      std::vector<float> good(6, 1.0F);
      EXPECT_TRUE(rank.Run(Allreduce("w", &good)).ok());
      EXPECT_THAT(good, Each(3.0F));
    });
  }
}

// Rank 1 comes after rank 0 has given up: its first submission must fail as rank 0's did, or its
// step n would be summed with step n + 1 of rank 0 from then on.
TEST(EngineErrors, ALateRankMissesTheStepTheOthersGaveUp) {
  for (const std::string group : {"", "g"}) {
    JobOptions options;
    options.config.stall_shutdown = std::chrono::milliseconds(500);
    EngineJob job(2, options);
    const auto submit = [&](int r, std::vector<float>* data) {
      std::vector<Submission> one;
      one.push_back(Allreduce("w", data));
      one.back().request.group = group;
      one.back().request.group_size = group.empty() ? 0 : 1;
      return job.rank(r).engine->Submit(std::move(one));
    };
    const auto run = [&](int r, float value) {
      std::vector<float> data(4, value);
      return job.rank(r).Wait(submit(r, &data)).code();
    };
    EXPECT_EQ(run(0, 1.0F), StatusCode::kTimeout);
    EXPECT_EQ(run(0, 2.0F), StatusCode::kTimeout);
    EXPECT_EQ(run(1, 1.0F), StatusCode::kTimeout);
    EXPECT_EQ(run(1, 2.0F), StatusCode::kTimeout);
    // Both at once, for this one must not be given up.
    std::vector<std::vector<float>> data(2, std::vector<float>(4, 3.0F));
    const std::vector<Result<Handle>> handles = {submit(0, &data[0]), submit(1, &data[1])};
    for (const int r : {0, 1}) {
      ExpectOk(job.rank(r).Wait(handles[static_cast<size_t>(r)]));
      EXPECT_THAT(data[static_cast<size_t>(r)], Each(6.0F));
    }
  }
}

TEST(EngineErrors, ANameInFlightIsRefusedAtTheCall) {
  EngineJob job(2);
  std::vector<float> first(4, 1.0F);
  std::vector<float> second(4, 1.0F);
  const Result<Handle> handle = job.rank(0).Submit(Allreduce("same", &first));
  const Status refused = job.rank(0).Run(Allreduce("same", &second));
  ExpectError(refused, StatusCode::kInvalidArgument, {"tensor 'same' is already in flight"});
  std::vector<float> other(4, 1.0F);
  EXPECT_TRUE(job.rank(1).Run(Allreduce("same", &other)).ok());
  EXPECT_TRUE(job.rank(0).Wait(handle).ok());
  EXPECT_THAT(first, Each(2.0F));
}

TEST(EngineErrors, ARankThatLeavesIsNamedToThoseWhoWait) {
  EngineJob job(3);
  std::latch others_know(2);
  job.OnEveryRank([&](EngineRank& rank) {
    if (rank.rank() == 2) {
      EXPECT_TRUE(rank.engine->Shutdown());
      return;
    }
    std::vector<float> data(4, 1.0F);
    const Status status = rank.Run(Allreduce("y", &data));
    ExpectError(status, StatusCode::kAborted, {"rank 2", "has left the job"});
    others_know.arrive_and_wait();  // Or the other one may be told of this one.
    rank.engine->Shutdown();
  });
}

// One thread of the program shuts down and starts anew between another's two steps of a call.
TEST(EngineErrors, ACallThatReachesAnEngineAfterItsSuccessorStartedIsAborted) {
  EngineJob job(1);
  job.rank(0).engine->Shutdown();
  const auto successor = *Engine::Start({.config = {},
                                         .topology = *MakeTopology(0, {"host-a"}),
                                         .connection = ConnectLocal(),
                                         .handles = job.rank(0).handles});
  std::vector<float> data(4, 1.0F);
  const Status status = job.rank(0).Run(Allreduce("x", &data));
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status.ToString();
  std::vector<Submission> again;
  again.push_back(Allreduce("x", &data));
  EXPECT_TRUE(job.rank(0).Wait(successor->Submit(std::move(again))).ok());
  successor->Shutdown();
}

TEST(EngineErrors, ShutdownEndsWhatIsPendingAndLaterCalls) {
  EngineJob job(2);
  std::vector<float> data(4, 1.0F);
  const Result<Handle> handle = job.rank(0).Submit(Allreduce("never ready", &data));
  ASSERT_TRUE(handle.ok());
  job.OnEveryRank([](EngineRank& rank) { rank.engine->Shutdown(); });
  EXPECT_EQ(job.rank(0).Wait(handle).code(), StatusCode::kAborted);
  const Status later = job.rank(0).Run(Allreduce("later", &data));
  EXPECT_EQ(later.code(), StatusCode::kAborted) << later.ToString();
}

// Alone in its job the engine wakes up for nothing else, so what it batches shows when it was
// woken.
// As those of process groups, for which nothing is submitted.
TEST(EngineTimeline, EventsReachTheFileWhileTheEngineHasNothingToDo) {
  using std::chrono::milliseconds;
  JobOptions options;
  options.timeline_path = ::testing::TempDir() + "events_of_an_idle_engine.json";
  EngineJob job(2, options);
  std::this_thread::sleep_for(milliseconds(50));  // Both engines sleep.
  job.rank(1).engine->RecordEvent(EventPhase::kInstant, "group 'a'", "SENT", "");
  const auto is_there = [&] {
    std::ifstream file(options.timeline_path);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    return text.find("SENT") != std::string::npos;
  };
  const TimePoint deadline = Now() + std::chrono::seconds(20);
  while (!is_there() && Now() < deadline) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(is_there());
}

TEST(EngineCost, WhatCanWaitIsReducedTogether) {
  EngineJob job(1);
  EngineRank& rank = job.rank(0);
  const auto submit = [&](const std::string& name, std::vector<float>* data, Pace pace) {
    return rank.Submit(Allreduce(name, data), pace);
  };
  std::vector<std::vector<float>> data(50, std::vector<float>(8, 1.0F));
  std::vector<Result<Handle>> handles;
  for (size_t i = 0; i < data.size(); ++i) {
    handles.push_back(submit("t" + std::to_string(i), &data[i], Pace::kWithMore));
  }
  rank.engine->Hurry();
  for (const auto& handle : handles) EXPECT_TRUE(rank.Wait(handle).ok());
  // Something that cannot wait takes what can along; so does a bucket that is full.
  const auto waiting = submit("waiting", &data[0], Pace::kWithMore);
  EXPECT_TRUE(rank.Wait(submit("urgent", &data[1], Pace::kNow)).ok());
  EXPECT_TRUE(rank.Wait(waiting).ok());
  std::vector<float> large(1 << 20, 1.0F);
  const auto before = submit("before", &data[0], Pace::kWithMore);
  EXPECT_TRUE(rank.Wait(submit("large", &large, Pace::kWithMore)).ok());
  EXPECT_TRUE(rank.Wait(before).ok());
  job.Shutdown();  // After which the counts are final.
  EXPECT_EQ(rank.engine->stats().tensors, 54);
  // Three, and one more for each time the engine happened to be awake already: at its start, and
  // after each of the two answers before a further submission.
  EXPECT_GE(rank.engine->stats().batches, 3);
  EXPECT_LE(rank.engine->stats().batches, 6);
}

TEST(EngineCost, SteadyStateCostsOneMessageEachWayAndIdleNothing) {
  EngineJob job(2);
  job.OnEveryRank([&](EngineRank& rank) {
    std::vector<float> data(64, 1.0F);
    EXPECT_TRUE(rank.Run(Allreduce("x", &data)).ok());
  });
  // Stats are published at the end of a cycle, after the handle is complete; another step orders
  // the two.
  const auto step = [&] {
    job.OnEveryRank([&](EngineRank& rank) {
      std::vector<float> data(64, 1.0F);
      EXPECT_TRUE(rank.Run(Allreduce("x", &data)).ok());
    });
  };
  step();
  const int64_t before = job.rank(1).engine->stats().control_messages_sent;
  for (int i = 0; i < 10; ++i) step();
  EXPECT_LE(job.rank(1).engine->stats().control_messages_sent - before, 10);
  EXPECT_GE(job.rank(1).engine->stats().cache_hits, 10);
}

}  // namespace
}  // namespace mydist
