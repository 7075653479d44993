// Engines that freeze their schedule: steps take no control messages, and whatever deviates is
// reduced as before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <random>

#include "algorithms/shm/shm_ranks.h"
#include "engine/outcome_of.h"
#include "engine_job.h"
#include "job/process.h"

namespace mydist {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

JobOptions Freezing() {
  JobOptions options;
  options.shares_memory = true;
  options.config.freeze_after = 3;
  options.config.stall_warning = std::chrono::hours(1);  // No thaw because the machine is slow.
  return options;
}

const std::vector<std::string> kNames = {"a", "b", "c", "d"};

class EngineFrozen : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, EngineFrozen, ::testing::Values(2, 3, 4));

TEST_P(EngineFrozen, StepsTakeNoControlMessages) {
  EngineJob job(GetParam(), Freezing());
  job.OnEveryRank([](EngineRank& rank) {
    for (int step = 0; step < 50; ++step) AllreduceStep(rank, step, kNames);
    const EngineStats before = rank.engine->stats();
    EXPECT_GT(before.frozen_steps, 0);
    for (int step = 0; step < 200; ++step) AllreduceStep(rank, step, kNames);
    const EngineStats after = rank.engine->stats();
    EXPECT_EQ(after.control_messages_sent, before.control_messages_sent);
    EXPECT_EQ(after.control_messages_received, before.control_messages_received);
    EXPECT_EQ(after.frozen_steps - before.frozen_steps, 200);
    EXPECT_EQ(after.thaws, 0);
  });
}

TEST_P(EngineFrozen, DeviationsAreReducedAsBefore) {
  EngineJob job(GetParam(), Freezing());
  job.OnEveryRank([](EngineRank& rank) {
    int step = 0;
    const auto deviate = [&](const std::vector<std::string>& names, int64_t count) {
      for (int i = 0; i < 300; ++i) AllreduceStep(rank, step++, kNames);
      AllreduceStep(rank, step++, names, count);
    };
    deviate({"a", "b", "new", "c", "d"}, 5);
    deviate({"a", "d"}, 5);
    deviate(kNames, 6);
    deviate({"d", "c", "b", "a"}, 5);
    EXPECT_GT(rank.engine->stats().frozen_steps, 0);
    EXPECT_GE(rank.engine->stats().thaws, 3);
  });
}

TEST_P(EngineFrozen, AMismatchIsAnErrorOnEveryRank) {
  EngineJob job(GetParam(), Freezing());
  job.OnEveryRank([](EngineRank& rank) {
    for (int step = 0; step < 100; ++step) AllreduceStep(rank, step, kNames);
    std::vector<float> data(rank.rank() == 0 ? 6 : 5, 1.0F);
    const Status status = rank.Run(Allreduce("a", &data));
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_THAT(status.message(), HasSubstr("[6]"));
    for (int step = 0; step < 100; ++step) AllreduceStep(rank, step, kNames);
  });
}

TEST_P(EngineFrozen, JoinThawsAndIsAnswered) {
  EngineJob job(GetParam(), Freezing());
  job.OnEveryRank([](EngineRank& rank) {
    for (int step = 0; step < 100; ++step) AllreduceStep(rank, step, kNames);
    // Rank 0 has fewer data than the others.
    for (int step = 0; step < (rank.rank() == 0 ? 0 : 20); ++step) {
      std::vector<float> data(5, 1.0F);
      ASSERT_TRUE(rank.Run(Allreduce("a", &data)).ok());
      ASSERT_THAT(data, Each(static_cast<float>(rank.size() - 1)));
    }
    int64_t last = -1;
    EXPECT_TRUE(rank.Wait(rank.engine->Join(
                              [&](const std::vector<int64_t>& numbers) { last = numbers.front(); }))
                    .ok());
    EXPECT_NE(last, -1);
    for (int step = 0; step < 100; ++step) AllreduceStep(rank, step, kNames);
  });
}

// A rank waits for each tensor, in an order that is not that of the others.
TEST_P(EngineFrozen, AnotherOrderWithWaitsDoesNotHang) {
  EngineJob job(GetParam(), Freezing());
  job.OnEveryRank([](EngineRank& rank) {
    for (int step = 0; step < 100; ++step) AllreduceStep(rank, step, kNames);
    if (rank.rank() == 0) {
      for (const char* name : {"d", "b", "c", "a"}) AllreduceStep(rank, 7, {name});
    } else {
      AllreduceStep(rank, 7, kNames);
    }
    EXPECT_GE(rank.engine->stats().thaws, 1);
  });
}

// What the others have is given up soon when somebody waits for it, also one that only sleeps by
// now.
TEST(EngineFrozenWait, CountsUntilItsEnd) {
  EngineJob job(2, Freezing());
  std::atomic<bool> is_asleep = false;
  std::atomic<bool> is_over = false;
  job.OnEveryRank([&](EngineRank& rank) {
    for (int step = 0; step < 100; ++step) AllreduceStep(rank, step, {"a", "b", "c"});
    EXPECT_GT(rank.engine->stats().frozen_steps, 0);
    if (rank.rank() == 1) {
      while (!is_asleep.load()) std::this_thread::yield();
    }
    std::array<std::vector<float>, 2> data;
    data.fill(std::vector<float>(5, 1.0F));
    const auto submit = [&](const std::string& name, std::vector<float>* values) {
      std::vector<Submission> tensors;
      tensors.push_back(Allreduce(name, values));
      return rank.engine->Submit(std::move(tensors));
    };
    const Result<Handle> first = submit("a", &data[0]);
    const Result<Handle> last = submit("c", &data[1]);
    ASSERT_TRUE(first.ok() && last.ok());
    if (rank.rank() == 0) {
      rank.engine->patient_callers()->fetch_add(1);
      EXPECT_FALSE(rank.engine->Wait(*last, Now() + std::chrono::milliseconds(1))->has_value());
      is_asleep.store(true);
      const auto outcome = rank.handles->Wait(*last, Now() + std::chrono::seconds(60));
      EXPECT_TRUE(outcome.ok() && outcome->has_value() && (*outcome)->ok());
      rank.engine->patient_callers()->fetch_sub(1);
      is_over.store(true);
    } else {
      while (!is_over.load()) std::this_thread::yield();
      EXPECT_TRUE(rank.Wait(last).ok());
    }
    EXPECT_TRUE(rank.Wait(first).ok());
    EXPECT_THAT(data, Each(Each(2.0F)));
  });
}

TEST_P(EngineFrozen, RandomProgramsGiveTheSameAsWithoutFreezing) {
  JobOptions options = Freezing();
  options.config.freeze_after = 2;
  EngineJob job(GetParam(), options);
  job.OnEveryRank([](EngineRank& rank) {
    std::mt19937 program(GetParam());  // The same on all ranks.
    std::mt19937 order(static_cast<uint32_t>(rank.rank()));
    for (int step = 0; step < 600; ++step) {
      std::vector<std::string> names = kNames;
      const uint32_t kind = program() % 40;
      if (kind == 0) names.push_back("extra");
      if (kind == 1) names.erase(names.begin() + program() % 4);
      if (kind == 2) std::shuffle(names.begin(), names.end(), order);
      AllreduceStep(rank, step, names, kind == 3 ? 9 : 5);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

// ---- over the control plane of the host, in processes of their own ----

Status ReduceOnce(const std::string& name) {
  float value = 1;
  float sum = 0;
  std::vector<Submission> tensors(1);
  tensors[0].request.name = name;
  tensors[0].request.shape = Shape({1});
  tensors[0].input = &value;
  tensors[0].output = &sum;
  MYDIST_ASSIGN_OR_RETURN(const Handle handle, process::Submit(std::move(tensors)));
  MYDIST_RETURN_IF_ERROR(OutcomeOf(handle));
  if (sum == static_cast<float>(process::GetTopology()->size)) return Status::Ok();
  return Status::Internal("the sum is " + std::to_string(sum));
}

void Start(const shm::ForkedRanks::Seat& seat, int size) {
  setenv("MYDIST_FREEZE_AFTER", "3", 1);
  setenv("MYDIST_STALL_WARNING_SECONDS", "3600", 1);
  const Status started = process::Init(
      {.rank = seat.rank, .size = size, .backend = "local", .exchange = seat.exchange});
  ASSERT_TRUE(started.ok()) << started.ToString();
}

TEST(LocalFrozenJob, StepsTakeNoControlMessages) {
  constexpr int kSize = 3;
  shm::ForkedRanks ranks(kSize, [](const shm::ForkedRanks::Seat& seat) {
    Start(seat, kSize);
    for (int step = 0; step < 50; ++step) ASSERT_TRUE(ReduceOnce("x").ok());
    const EngineStats before = *process::Stats();
    for (int step = 0; step < 1000; ++step) {
      const Status status = ReduceOnce("x");
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    const EngineStats after = *process::Stats();
    EXPECT_EQ(after.control_messages_sent, before.control_messages_sent);
    EXPECT_EQ(after.control_messages_received, before.control_messages_received);
    EXPECT_EQ(after.frozen_steps - before.frozen_steps, 1000);
    EXPECT_TRUE(seat.exchange({}).ok());  // A rank that shuts down thaws the others.
    EXPECT_TRUE(process::Shutdown().ok());
  });
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

TEST(LocalFrozenJob, ADeadRankIsAnErrorOfTheOthers) {
  constexpr int kSize = 3;
  shm::ForkedRanks ranks(kSize, [](const shm::ForkedRanks::Seat& seat) {
    Start(seat, kSize);
    Status status;
    for (int step = 0; status.ok(); ++step) {
      if (seat.rank == 1 && step == 100) kill(getpid(), SIGKILL);
      status = ReduceOnce("x");
    }
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_THAT(status.message(), HasSubstr("rank 1"));
    EXPECT_TRUE(process::Shutdown().ok());
  });
  for (const int rank : {0, 2}) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
  EXPECT_NE(ranks.Wait(1), 0);
}

}  // namespace
}  // namespace mydist
