// Engines that freeze their schedule, on one host or several: steps take no control messages but a
// word per bucket from host to host, and steps that differ are reduced as before. The rules one by
// one: frozen_property_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <random>

#include "engine_job.h"

namespace mydist {
namespace {

using ::testing::Each;

using Hosts = std::vector<std::string>;

JobOptions FreezingOn(const Hosts& hosts) {
  JobOptions options{.hosts = hosts, .shares_memory = true};
  options.config.freeze_after = 3;
  options.config.shared_memory = true;
  options.config.stall_warning = std::chrono::hours(1);  // No thaw because the machine is slow.
  return options;
}

void ReduceSteps(EngineRank& rank, int count) {
  for (int step = 0; step < count; ++step) AllreduceStep(rank, step, {"a"});
}

class EngineFrozen : public ::testing::TestWithParam<Hosts> {
 protected:
  int size() const { return static_cast<int>(GetParam().size()); }
};
INSTANTIATE_TEST_SUITE_P(Layouts, EngineFrozen,
                         ::testing::Values(Hosts{"a", "a"}, Hosts{"a", "a", "a", "a"},
                                           Hosts{"a", "b"}, Hosts{"a", "b", "b", "a"},
                                           Hosts{"a", "b", "b", "c"}));

TEST_P(EngineFrozen, ABucketTakesOneWordFromHostToHost) {
  EngineJob job(size(), FreezingOn(GetParam()));
  job.OnEveryRank([](EngineRank& rank) {
    ReduceSteps(rank, 30);
    const EngineStats before = rank.engine->stats();
    EXPECT_GT(before.frozen_steps, 0);
    ReduceSteps(rank, 200);
    const EngineStats after = rank.engine->stats();
    const Topology& topology = rank.engine->topology();
    const int64_t words = topology.local_rank == 0 ? 200 * (topology.cross_size - 1) : 0;
    EXPECT_EQ(after.host_votes_sent - before.host_votes_sent, words);
    EXPECT_EQ(after.control_messages_sent - before.control_messages_sent, words);
    // Those of the next bucket may have come already.
    EXPECT_EQ(after.control_messages_received - before.control_messages_received,
              after.host_votes_received - before.host_votes_received);
    EXPECT_EQ(after.frozen_steps - before.frozen_steps, 200);
    EXPECT_EQ(after.thaws, 0);
    ReduceSteps(rank, 3);
  });
}

TEST_P(EngineFrozen, RandomProgramsGiveTheSameAsWithoutFreezing) {
  JobOptions options = FreezingOn(GetParam());
  options.config.freeze_after = 2;
  EngineJob job(size(), options);
  job.OnEveryRank([](EngineRank& rank) {
    std::mt19937 program(7);  // The same on all ranks.
    std::mt19937 order(static_cast<uint32_t>(rank.rank()));
    for (int step = 0; step < 300 && !::testing::Test::HasFailure(); ++step) {
      std::vector<std::string> names = {"a", "b", "c"};
      const uint32_t kind = program() % 40;
      if (kind == 0) names.push_back("extra");
      if (kind == 1) names.erase(names.begin() + program() % 3);
      if (kind == 2) std::shuffle(names.begin(), names.end(), order);
      AllreduceStep(rank, step, names, kind == 3 ? 9 : 5);
    }
    EXPECT_GT(rank.engine->stats().frozen_steps, 0);
  });
}

TEST_P(EngineFrozen, ARankThatLeavesEndsTheWaitOfAll) {
  EngineJob job(size(), FreezingOn(GetParam()));
  std::latch others_know(size() - 1);
  job.OnEveryRank([&](EngineRank& rank) {
    ReduceSteps(rank, 60);
    EXPECT_GT(rank.engine->stats().frozen_steps, 0);
    if (rank.rank() == rank.size() - 1) {
      rank.engine->Shutdown();
      return;
    }
    std::vector<float> data(5);
    const Status status = rank.Run(Allreduce("a", &data));
    ExpectError(status, StatusCode::kAborted, {"rank " + std::to_string(rank.size() - 1)});
    others_know.arrive_and_wait();  // Or they would be told of this one.
    rank.engine->Shutdown();
  });
}

// A host that shares no memory, and more hosts than the radix allows.
TEST(EngineFrozenNever, WhereWordsCannotPass) {
  JobOptions apart = FreezingOn({"a", "a", "b"});
  apart.shares_memory = false;
  JobOptions narrow = FreezingOn({"a", "b", "c", "d"});
  narrow.config.coordinator_radix = 2;
  for (const JobOptions& options : {apart, narrow}) {
    EngineJob job(static_cast<int>(options.hosts.size()), options);
    job.OnEveryRank([](EngineRank& rank) {
      ReduceSteps(rank, 60);
      EXPECT_EQ(rank.engine->stats().frozen_steps, 0);
    });
  }
}

// What the others have is given up soon when somebody waits for it, also one that only sleeps by
// now.
TEST(EngineFrozenWait, CountsUntilItsEnd) {
  EngineJob job(2, FreezingOn({"a", "a"}));
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
      return rank.Submit(Allreduce(name, values));
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

}  // namespace
}  // namespace mydist
