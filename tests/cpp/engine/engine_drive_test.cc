// Callers that wait drive the engine themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "base/signal_block.h"
#include "engine_job.h"

namespace mydist {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Nobody ever sleeps while a tensor is on its way, and news between two waits wakes nobody.
constexpr WaitPolicy kTireless{.patience = std::chrono::hours(1), .linger = std::chrono::hours(1)};
// Everybody sleeps at once, in place of the engine's thread, which comes back after each call.
constexpr WaitPolicy kImpatient{.patience = Duration::zero(), .linger = Duration::zero()};
// The same, and the thread stays away in a series of calls.
constexpr WaitPolicy kSleepy{.patience = Duration::zero(), .linger = std::chrono::hours(1)};
constexpr WaitPolicy kPolicies[] = {kTireless, kImpatient, kSleepy};

JobOptions With(const WaitPolicy& policy) {
  JobOptions options;
  options.wait_policy = policy;
  return options;
}

void ReduceRepeatedly(EngineRank& rank, int count, Pace pace) {
  for (int i = 0; i < count; ++i) {
    std::vector<float> data(7, static_cast<float>(rank.rank() + i));
    const Status status = rank.Run(Allreduce("x" + std::to_string(i % 3), &data), pace);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const int size = rank.size();
    ASSERT_THAT(data, Each(static_cast<float>(size * i + size * (size - 1) / 2)));
  }
}

TEST(EngineDrive, ARankAloneNeedsItsThreadForNothing) {
  EngineJob job(1, With(kTireless));
  // The second drive wakes the thread, which from there on leaves the caller alone. It need not be
  // the second call: the thread starts with a look of its own.
  ReduceRepeatedly(job.rank(0), 20, Pace::kDriven);
  AwaitQuiet(job.rank(0));
  const EngineStats before = job.rank(0).engine->stats();
  ReduceRepeatedly(job.rank(0), 1000, Pace::kDriven);
  const EngineStats after = job.rank(0).engine->stats();
  EXPECT_EQ(after.wakeups, before.wakeups);
  EXPECT_EQ(after.hand_overs, before.hand_overs);
  EXPECT_EQ(after.tensors - before.tensors, 1000);
}

class EngineDriveSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, EngineDriveSizes, ::testing::Values(2, 3, 4));

// Whoever has to sleep meanwhile does so where news comes in.
TEST_P(EngineDriveSizes, ASeriesOfSynchronousCallsWakesNobody) {
  for (const WaitPolicy& policy : {kTireless, kSleepy}) {
    EngineJob job(GetParam(), With(policy));
    job.OnEveryRank([](EngineRank& rank) {
      // Before it is known to be a series, news may wake the thread, on a busy machine often.
      ReduceRepeatedly(rank, 20, Pace::kDriven);
      AwaitQuiet(rank);
      const EngineStats before = rank.engine->stats();
      ReduceRepeatedly(rank, 1000, Pace::kDriven);
      const EngineStats after = rank.engine->stats();
      EXPECT_LE(after.wakeups - before.wakeups, 10);
      EXPECT_LE(after.hand_overs - before.hand_overs, 10);
    });
  }
}

// Not even once: there is nothing left that the thread could have to do.
TEST_P(EngineDriveSizes, AFrozenSeriesTakesNoWakeUpsAndNoMessages) {
  JobOptions options = With(kTireless);
  options.shares_memory = true;
  options.config.freeze_after = 3;
  options.config.stall_warning = std::chrono::hours(1);  // No thaw because the machine is slow.
  EngineJob job(GetParam(), options);
  job.OnEveryRank([](EngineRank& rank) {
    ReduceRepeatedly(rank, 300, Pace::kDriven);
    AwaitQuiet(rank);
    const EngineStats before = rank.engine->stats();
    ReduceRepeatedly(rank, 900, Pace::kDriven);
    const EngineStats after = rank.engine->stats();
    EXPECT_EQ(after.frozen_steps - before.frozen_steps, 300);
    EXPECT_EQ(after.wakeups, before.wakeups);
    EXPECT_EQ(after.hand_overs, before.hand_overs);
    EXPECT_EQ(after.control_messages_sent, before.control_messages_sent);
    EXPECT_EQ(after.control_messages_received, before.control_messages_received);
  });
}

// Ranks with every pace, each with three threads that wait at the same time.
TEST_P(EngineDriveSizes, SeveralCallersShareOneEngine) {
  for (const WaitPolicy& policy : {WaitPolicy(), kImpatient, kSleepy}) {
    EngineJob job(GetParam(), With(policy));
    job.OnEveryRank([](EngineRank& rank) {
      std::vector<std::thread> callers;
      for (int caller = 0; caller < 3; ++caller) {
        callers.emplace_back([&rank, caller] {
          constexpr Pace kPaces[] = {Pace::kNow, Pace::kWithMore, Pace::kDriven};
          for (int i = 0; i < 150; ++i) {
            std::vector<float> data(5, 1.0f);
            const std::string name = "caller " + std::to_string(caller);
            const Status status =
                rank.Run(Allreduce(name, &data), kPaces[(i + caller + rank.rank()) % 3]);
            ASSERT_TRUE(status.ok()) << status.ToString();
            ASSERT_THAT(data, Each(static_cast<float>(rank.size())));
          }
        });
      }
      for (std::thread& caller : callers) caller.join();
    });
  }
}

class EngineDrivePolicies : public ::testing::TestWithParam<WaitPolicy> {};
INSTANTIATE_TEST_SUITE_P(Policies, EngineDrivePolicies, ::testing::ValuesIn(kPolicies));

// One thread waits for a tensor whose peer is late, while others of the rank go on.
TEST_P(EngineDrivePolicies, WhoWaitsForLongHoldsNobodyUp) {
  EngineJob job(2, With(GetParam()));
  EngineRank& mine = job.rank(0);
  std::vector<float> late(3, 1.0f);
  std::thread caller([&] { EXPECT_TRUE(mine.Run(Allreduce("late", &late), Pace::kDriven).ok()); });
  std::thread peer([&] {
    for (int i = 0; i < 200; ++i) {
      std::vector<float> data(7, 2.0f);
      ASSERT_TRUE(job.rank(1).Run(Allreduce("x" + std::to_string(i % 3), &data)).ok());
    }
  });
  for (int i = 0; i < 200; ++i) {
    std::vector<float> data(7, 1.0f);
    const Pace pace = i % 2 == 0 ? Pace::kNow : Pace::kWithMore;
    const Result<Handle> handle = mine.Submit(Allreduce("x" + std::to_string(i % 3), &data), pace);
    if (pace == Pace::kWithMore) mine.engine->Hurry();
    const TimePoint limit = Now() + std::chrono::seconds(60);
    // Waits only now and then: else nobody but the other thread drives.
    while (i % 3 > 0 && !*mine.handles->Poll(*handle)) ASSERT_LT(Now(), limit) << i;
    ASSERT_TRUE(mine.Wait(handle).ok());
    ASSERT_THAT(data, Each(3.0f));
  }
  peer.join();
  std::vector<float> data(3, 2.0f);
  EXPECT_TRUE(job.rank(1).Run(Allreduce("late", &data)).ok());
  caller.join();
  EXPECT_THAT(late, Each(3.0f));
}

// A caller that submits for itself and then does not come: anything else it does makes up for that.
TEST(EngineDrive, WhatNobodyFetchesIsNotForgotten) {
  EngineJob job(2);
  std::vector<float> left_alone(3, 1.0f);
  std::vector<float> fetched(3, 2.0f);
  const Result<Handle> handle =
      job.rank(0).Submit(Allreduce("left alone", &left_alone), Pace::kDriven);
  std::thread peer([&] { EXPECT_TRUE(job.rank(1).Run(Allreduce("left alone", &fetched)).ok()); });
  job.rank(0).engine->Hurry();
  peer.join();
  EXPECT_THAT(fetched, Each(3.0f));
  EXPECT_TRUE(job.rank(0).Wait(handle).ok());
}

// Whoever of two drives completes the tensor of the other as well, who comes to drive just then.
TEST_P(EngineDrivePolicies, NobodySleepsOnWhatAnotherHasCompleted) {
  EngineJob job(2, With(GetParam()));
  for (int round = 0; round < 500; ++round) {
    std::vector<std::vector<float>> data(4, std::vector<float>(3, 1.0f));
    const auto run = [&](int rank, size_t caller) {
      const size_t own = 2 * static_cast<size_t>(rank) + caller;
      const std::string name = "of caller " + std::to_string(caller);
      ASSERT_TRUE(job.rank(rank).Run(Allreduce(name, &data[own]), Pace::kDriven).ok());
    };
    std::vector<std::thread> callers;
    for (const int rank : {0, 1}) {
      for (const size_t caller : {size_t{0}, size_t{1}}) callers.emplace_back(run, rank, caller);
    }
    for (std::thread& caller : callers) caller.join();
    for (const std::vector<float>& each : data) ASSERT_THAT(each, Each(2.0f)) << round;
  }
}

TEST_P(EngineDrivePolicies, AWaitInVainEndsAtItsDeadlineAndKeepsTheHandle) {
  EngineJob job(2, With(GetParam()));
  std::vector<float> data(3, 1.0f);
  const Handle handle = *job.rank(0).Submit(Allreduce("early", &data), Pace::kDriven);
  const TimePoint deadline = Now() + std::chrono::milliseconds(5);
  EXPECT_FALSE(job.rank(0).engine->Wait(handle, deadline)->has_value());
  EXPECT_GE(Now(), deadline);
  std::vector<float> other(3, 2.0f);
  EXPECT_TRUE(job.rank(1).Run(Allreduce("early", &other)).ok());
  EXPECT_TRUE(job.rank(0).Wait(handle).ok());
  EXPECT_THAT(data, Each(3.0f));
}

// The caller meets the error; the engine ends all the same, once, and says so to everybody.
TEST_P(EngineDrivePolicies, AnErrorThatACallerMeetsEndsTheEngine) {
  EngineJob job(2, With(GetParam()));
  job.OnEveryRank([](EngineRank& rank) {
    const std::vector<int32_t> input(2, 1);
    std::vector<int32_t> output;
    Submission submission = WithOutput(OpKind::kAllgather, "gather", Shape({2}), input, &output);
    submission.allocate = [](const Shape&) -> Result<void*> {
      return Status::Internal("no memory today");
    };
    const Status status = rank.Run(std::move(submission), Pace::kDriven);
    EXPECT_THAT(status.message(), HasSubstr("no memory today"));
    std::vector<float> data(3, 1.0f);
    EXPECT_FALSE(rank.Run(Allreduce("later", &data), Pace::kDriven).ok());
  });
}

TEST_P(EngineDrivePolicies, ShutdownEndsWhatACallerDrives) {
  EngineJob job(2, With(GetParam()));
  std::vector<float> data(3, 1.0f);
  std::thread caller([&] {
    const Status status = job.rank(0).Run(Allreduce("alone", &data), Pace::kDriven);
    EXPECT_EQ(status.code(), StatusCode::kAborted) << status.ToString();
  });
  job.Shutdown();
  caller.join();
}

#if defined(__SSE__)
// Denormals must not depend on the settings of the thread that waits.
TEST(EngineDrive, TheCallersFloatSettingsDoNotMatter) {
  constexpr unsigned kFlushesDenormals = 0x8040;
  EngineJob job(2, With(kTireless));
  job.OnEveryRank([](EngineRank& rank) {
    const unsigned settings = _mm_getcsr() | (rank.rank() == 0 ? kFlushesDenormals : 0);
    _mm_setcsr(settings);
    std::vector<float> data(3, 0x1p-140f);
    EXPECT_TRUE(rank.Run(Allreduce("tiny", &data), Pace::kDriven).ok());
    EXPECT_EQ(_mm_getcsr(), settings) << "the caller's own settings have changed";
    _mm_setcsr(settings & ~kFlushesDenormals);
    EXPECT_THAT(data, Each(0x1p-139f));
  });
}
#endif

}  // namespace
}  // namespace mydist
