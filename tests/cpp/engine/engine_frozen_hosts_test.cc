// Engines on several hosts that freeze their schedule: one word per bucket from host to host, and
// whatever deviates is reduced as before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <random>

#include "engine_job.h"

namespace mydist {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Hosts = std::vector<std::string>;

JobOptions FreezingOn(const Hosts& hosts) {
  JobOptions options{.hosts = hosts, .shares_memory = true};
  options.config.freeze_after = 3;
  options.config.shared_memory = true;
  options.config.stall_warning = std::chrono::hours(1);  // No thaw because the machine is slow.
  return options;
}

void Reduce(EngineRank& rank, int step, const std::string& name, int64_t count = 5) {
  std::vector<float> data(static_cast<size_t>(count), static_cast<float>(rank.rank() + step));
  const Status status = rank.Run(Allreduce(name, &data));
  ASSERT_TRUE(status.ok()) << status.ToString();
  const int size = rank.size();
  ASSERT_THAT(data, Each(static_cast<float>(size * step + size * (size - 1) / 2)));
}

int HostCount(const EngineRank& rank) { return rank.engine->topology().cross_size; }
bool Leads(const EngineRank& rank) { return rank.engine->topology().local_rank == 0; }

class EngineFrozenHosts : public ::testing::TestWithParam<Hosts> {
 protected:
  int size() const { return static_cast<int>(GetParam().size()); }
};
INSTANTIATE_TEST_SUITE_P(Layouts, EngineFrozenHosts,
                         ::testing::Values(Hosts{"a", "b"}, Hosts{"a", "b", "b", "a"},
                                           Hosts{"a", "b", "b", "c"}));

TEST_P(EngineFrozenHosts, ABucketTakesOneWordFromHostToHost) {
  EngineJob job(size(), FreezingOn(GetParam()));
  job.OnEveryRank([](EngineRank& rank) {
    for (int step = 0; step < 30; ++step) Reduce(rank, step, "a");
    const EngineStats before = rank.engine->stats();
    EXPECT_GT(before.frozen_steps, 0);
    for (int step = 0; step < 200; ++step) Reduce(rank, step, "a");
    const EngineStats after = rank.engine->stats();
    const int64_t words = Leads(rank) ? 200 * (HostCount(rank) - 1) : 0;
    EXPECT_EQ(after.host_votes_sent - before.host_votes_sent, words);
    EXPECT_EQ(after.control_messages_sent - before.control_messages_sent, words);
    // Those of the next bucket may have come already.
    EXPECT_EQ(after.control_messages_received - before.control_messages_received,
              after.host_votes_received - before.host_votes_received);
    EXPECT_EQ(after.frozen_steps - before.frozen_steps, 200);
    EXPECT_EQ(after.thaws, 0);
    for (int step = 0; step < 3; ++step) Reduce(rank, step, "a");
  });
}

TEST_P(EngineFrozenHosts, RandomProgramsGiveTheSameAsWithoutFreezing) {
  JobOptions options = FreezingOn(GetParam());
  options.config.freeze_after = 2;
  EngineJob job(size(), options);
  job.OnEveryRank([](EngineRank& rank) {
    std::mt19937 program(7);  // The same on all ranks.
    std::mt19937 order(static_cast<uint32_t>(rank.rank()));
    for (int step = 0; step < 300; ++step) {
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

TEST_P(EngineFrozenHosts, ARankThatLeavesEndsTheWaitOfAll) {
  JobOptions options = FreezingOn(GetParam());
  EngineJob job(size(), options);
  std::latch others_know(size() - 1);
  job.OnEveryRank([&](EngineRank& rank) {
    for (int step = 0; step < 60; ++step) Reduce(rank, step, "a");
    EXPECT_GT(rank.engine->stats().frozen_steps, 0);
    if (rank.rank() == rank.size() - 1) {
      rank.engine->Shutdown();
      return;
    }
    std::vector<float> data(5);
    const Status status = rank.Run(Allreduce("a", &data));
    EXPECT_EQ(status.code(), StatusCode::kAborted) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("rank " + std::to_string(rank.size() - 1)));
    others_know.arrive_and_wait();  // Or they would be told of this one.
    rank.engine->Shutdown();
  });
}

TEST(EngineFrozenHostsTest, ItNeverFreezesWhenAHostSharesNoMemory) {
  JobOptions options = FreezingOn({"a", "a", "b"});
  options.shares_memory = false;
  EngineJob job(3, options);
  job.OnEveryRank([](EngineRank& rank) {
    for (int step = 0; step < 60; ++step) Reduce(rank, step, "a");
    EXPECT_EQ(rank.engine->stats().frozen_steps, 0);
  });
}

TEST(EngineFrozenHostsTest, ItNeverFreezesOnMoreHostsThanTheRadixAllows) {
  JobOptions options = FreezingOn({"a", "b", "c", "d"});
  options.config.coordinator_radix = 2;
  EngineJob job(4, options);
  job.OnEveryRank([](EngineRank& rank) {
    for (int step = 0; step < 60; ++step) Reduce(rank, step, "a");
    EXPECT_EQ(rank.engine->stats().frozen_steps, 0);
  });
}

}  // namespace
}  // namespace mydist
