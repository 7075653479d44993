// Jobs of one host with nothing but the core: process::Init to Shutdown, one process per rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "algorithms/shm/shm_ranks.h"
#include "base/usable_cores.h"
#include "engine/outcome_of.h"
#include "job/job.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;

InitOptions OptionsOf(const shm::ForkedRanks::Seat& seat, int size, const std::string& backend) {
  return {.rank = seat.rank, .size = size, .backend = backend, .exchange = seat.exchange};
}

Status SumOfRanks(int size, float* sum) {
  float value = static_cast<float>((*process::CurrentJob())->engine().topology().rank + 1);
  std::vector<Submission> tensors(1);
  tensors[0].request.name = "x";
  tensors[0].request.shape = Shape({1});
  tensors[0].input = &value;
  tensors[0].output = sum;
  EXPECT_EQ((*process::CurrentJob())->engine().topology().size, size);
  MYDIST_ASSIGN_OR_RETURN(const Handle handle,
                          (*process::CurrentJob())->engine().Submit(std::move(tensors)));
  return OutcomeOf(handle);
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
      float sum = 0;
      const Status reduced = SumOfRanks(kSize, &sum);
      EXPECT_TRUE(reduced.ok()) << reduced.ToString();
      EXPECT_EQ(sum, 10);
      EXPECT_TRUE(process::Shutdown().ok());
    }
  });
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
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
      float sum = 0;
      const Status reduced = SumOfRanks(2, &sum);
      EXPECT_TRUE(reduced.ok()) << reduced.ToString();
      EXPECT_EQ(sum, 3);
      EXPECT_TRUE(process::Shutdown().ok());
    });
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
  }
}

TEST(LocalJobStart, WithoutSharedMemorySaysSo) {
  shm::ForkedRanks ranks(2, [](const shm::ForkedRanks::Seat& seat) {
    setenv("MYDIST_SHARED_MEMORY", "0", 1);
    const Status status = process::Init(OptionsOf(seat, 2, "local"));
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("unavailable: MYDIST_SHARED_MEMORY is 0"));
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

TEST(LocalJobStart, RanksThatAskForDifferentBackendsAreTold) {
  shm::ForkedRanks ranks(2, [](const shm::ForkedRanks::Seat& seat) {
    const Status status = process::Init(OptionsOf(seat, 2, seat.rank == 0 ? "auto" : "local"));
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_THAT(status.message(), HasSubstr("MYDIST_CONTROLLER must be the same on every rank"));
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

TEST(LocalJobStart, RanksOfSeveralHostsCannotBeLocal) {
  shm::ForkedRanks ranks(2, [](const shm::ForkedRanks::Seat& seat) {
    setenv("MYDIST_HOST_ID", seat.rank == 0 ? "a" : "b", 1);
    const Status status = process::Init(OptionsOf(seat, 2, "local"));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("is for jobs of one host"));
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

}  // namespace
}  // namespace mydist
