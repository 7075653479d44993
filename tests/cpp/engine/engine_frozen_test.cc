// Engines that freeze their schedule: steps take no control messages, and steps that differ are
// reduced as before. The rules one by one: frozen_property_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>

#include "engine_job.h"

namespace mydist {
namespace {

using ::testing::Each;

JobOptions Freezing() {
  JobOptions options;
  options.shares_memory = true;
  options.config.freeze_after = 3;
  options.config.stall_warning = std::chrono::hours(1);  // No thaw because the machine is slow.
  return options;
}

const std::vector<std::string> kNames = {"a", "b", "c", "d"};

class EngineFrozen : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, EngineFrozen, ::testing::Values(2, 4));

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

}  // namespace
}  // namespace mydist
