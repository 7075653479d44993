// Jobs of one host with nothing but the core: process::Init to Shutdown, one process per rank.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "algorithms/shm/shm_ranks.h"
#include "base/usable_cores.h"
#include "conformance/status_checks.h"
#include "engine/outcome_of.h"
#include "job/job.h"

namespace mydist {
namespace {

InitOptions OptionsOf(const shm::ForkedRanks::Seat& seat, int size, const std::string& backend) {
  return {.rank = seat.rank, .size = size, .backend = backend, .exchange = seat.exchange};
}

// Of their numbers, counted from one.
void ExpectSumOfRanks(int size) {
  Engine& engine = (*process::CurrentJob())->engine();
  EXPECT_EQ(engine.topology().size, size);
  std::vector<float> data{static_cast<float>(engine.topology().rank + 1)};
  const Result<Handle> handle = engine.Submit(OneTensor("x", &data));
  ASSERT_TRUE(handle.ok()) << handle.status().ToString();
  ExpectOk(OutcomeOf(*handle));
  EXPECT_EQ(data[0], static_cast<float>(size * (size + 1) / 2));
}

class LocalJob : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(AskedFor, LocalJob, ::testing::Values("auto", "local"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(LocalJob, RunsAgainAndAgain) {
  constexpr int kSize = 4;
  shm::ForkedRanks ranks(kSize, [](const shm::ForkedRanks::Seat& seat) {
    for (int cycle = 0; cycle < 20; ++cycle) {
      const Status started = process::Init(OptionsOf(seat, kSize, GetParam()));
      ASSERT_TRUE(started.ok()) << started.ToString();
      EXPECT_EQ((*process::CurrentJob())->backend(), "local");
      ExpectSumOfRanks(kSize);
      EXPECT_TRUE(process::Shutdown().ok());
    }
  });
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

// As a signal handler does that runs while init() waits for others.
TEST(LocalJobStart, RefusesToEndBeforeItHasBegun) {
  shm::ForkedRanks ranks(2, [](const shm::ForkedRanks::Seat& seat) {
    InitOptions options = OptionsOf(seat, 2, "local");
    options.exchange = [&seat, &options](const Bytes& mine) {
      ExpectError(process::Shutdown(), StatusCode::kInvalidArgument, {"this thread is in init()"});
      ExpectError(process::Init(options), StatusCode::kInvalidArgument, {"is in init() already"});
      return seat.exchange(mine);
    };
    ExpectOk(process::Init(options));
    ExpectSumOfRanks(2);
    ExpectOk(process::Shutdown());
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

void PinTo(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(core), &cores);
  ASSERT_EQ(sched_setaffinity(0, sizeof cores, &cores), 0);
}

std::string ChoiceOf(const std::string& topic) {
  const std::vector<Fact> facts = (*process::CurrentJob())->Explain();
  const auto fact = std::find_if(facts.begin(), facts.end(),
                                 [&](const Fact& each) { return each.topic == topic; });
  return fact == facts.end() ? "nothing" : fact->choice;
}

// As mpirun binds them; and with a rank that could use both, or with one core for two.
TEST(LocalJobStart, KnowsWhetherPinnedRanksHaveACoreEach) {
  const auto [cores, quotas] = UsableCores::OfThisThread();
  if (cores.size() < 2) GTEST_SKIP() << "needs two cores, has " << cores.size();
  for (const CpuQuota& quota : quotas) {
    if (quota.cores >= 2) continue;
    GTEST_SKIP() << "needs the time of two cores, may use that of " << quota.cores;
  }
  struct Case {
    std::vector<int> pins;  // -1: none.
    const char* expected;
  };
  for (const Case& each : {Case{{cores[0], cores[1]}, "spins briefly, then sleeps"},
                           Case{{cores[0], -1}, "spins briefly, then sleeps"},
                           Case{{cores[0], cores[0]}, "yields the core at once"}}) {
    shm::ForkedRanks ranks(2, [&](const shm::ForkedRanks::Seat& seat) {
      const int core = each.pins[static_cast<size_t>(seat.rank)];
      if (core >= 0) PinTo(core);
      const Status started = process::Init(OptionsOf(seat, 2, "auto"));
      ASSERT_TRUE(started.ok()) << started.ToString();
      EXPECT_EQ(ChoiceOf("waiting"), each.expected);
      ExpectSumOfRanks(2);
      EXPECT_TRUE(process::Shutdown().ok());
    });
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
  }
}

TEST(LocalJobStart, WhatCannotBeLocalSaysWhy) {
  struct Case {
    std::string variable;
    std::array<const char*, 2> values;  // Of each rank.
    std::array<const char*, 2> backends;
    StatusCode code;
    const char* text;
  };
  for (const Case& each : {Case{"MYDIST_SHARED_MEMORY",
                                {"0", "0"},
                                {"local", "local"},
                                StatusCode::kInternal,
                                "unavailable: MYDIST_SHARED_MEMORY is 0"},
                           Case{"MYDIST_LOG_LEVEL",
                                {"warning", "warning"},
                                {"auto", "local"},
                                StatusCode::kMismatch,
                                "MYDIST_CONTROLLER must be the same on every rank"},
                           Case{"MYDIST_HOST_ID",
                                {"a", "b"},
                                {"local", "local"},
                                StatusCode::kInvalidArgument,
                                "is for jobs of one host"}}) {
    shm::ForkedRanks ranks(2, [&](const shm::ForkedRanks::Seat& seat) {
      const auto rank = static_cast<size_t>(seat.rank);
      setenv(each.variable.c_str(), each.values[rank], 1);
      ExpectError(process::Init(OptionsOf(seat, 2, each.backends[rank])), each.code, {each.text});
    });
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
  }
}

}  // namespace
}  // namespace mydist
