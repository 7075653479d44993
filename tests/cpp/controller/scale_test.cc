// A thousand ranks in one process: every vertex's work stays bounded by the radix, and a steady
// state costs the same number of messages however many tensors there are.
#include <gtest/gtest.h>

#include "controller/simulated_job.h"

namespace mydist {
namespace {

void RunStep(SimulatedJob& job, int tensor_count) {
  for (int rank = 0; rank < job.size(); ++rank) {
    std::vector<Request> requests;
    for (int tensor = 0; tensor < tensor_count; ++tensor) {
      // Another order on every rank.
      const int id = (tensor * 7 + rank) % tensor_count;
      requests.push_back(MakeRequest("t" + std::to_string(id), {id}));
      if (id % 3 == 0) {
        requests.back().op = OpKind::kAllgather;
        requests.back().shape = Shape({rank + id});
      }
    }
    job.Announce(rank, std::move(requests));
  }
  job.RunUntilQuiet();
}

class ScaleTest : public ::testing::TestWithParam<int> {};

TEST_P(ScaleTest, AThousandRanksAgree) {
  constexpr int kSize = 1000;
  constexpr int kTensors = 20;
  const int radix = GetParam();
  SimulatedJob job({.size = kSize, .radix = radix, .cache_capacity = 64});
  for (int step = 1; step <= 2; ++step) {
    RunStep(job, kTensors);
    const auto expected = job.Log(0);
    size_t ready_count = 0;
    for (const std::string& line : expected) ready_count += line != "|";
    ASSERT_EQ(ready_count, static_cast<size_t>(step * kTensors));
    for (int rank = 0; rank < kSize; ++rank) {
      ASSERT_EQ(job.Log(rank), expected);
      const auto& stats = job.coordinator(rank).stats();
      const auto bound = static_cast<uint64_t>(step * radix * kTensors);
      ASSERT_LE(stats.entries_received, bound) << rank;
    }
  }
  EXPECT_EQ(job.coordinator(kSize - 1).stats().cache_hits, uint64_t{kTensors});
  EXPECT_EQ(job.coordinator(kSize - 1).stats().cache_misses, uint64_t{kTensors});
}

INSTANTIATE_TEST_SUITE_P(Radix, ScaleTest, ::testing::Values(2, 8, 32));

// One report up and one segment down per edge and step, once every rank announces in one go.
uint64_t MessagesOfASteadyStep(int size, int tensor_count) {
  SimulatedJob job({.size = size, .radix = 32, .cache_capacity = 1024});
  for (int step = 0; step < 2; ++step) RunStep(job, tensor_count);
  const uint64_t before = job.MessagesSent();
  for (int rank = 0; rank < size; ++rank) {
    std::vector<Request> requests;
    for (int id = 0; id < tensor_count; ++id) {
      requests.push_back(MakeRequest("t" + std::to_string(id), {id}));
      if (id % 3 != 0) continue;
      requests.back().op = OpKind::kAllgather;
      requests.back().shape = Shape({rank + id});
    }
    job.Announce(rank, std::move(requests));
  }
  // Children before the root, so that the root hears of all of them in one cycle.
  for (int rank = size - 1; rank > 0; --rank) EXPECT_TRUE(job.Step(rank).ok());
  while (job.DeliverOne()) {
  }
  job.RunUntilQuiet();
  return job.MessagesSent() - before;
}

TEST(SteadyStateTest, MessagesDoNotDependOnTheNumberOfTensors) {
  EXPECT_EQ(MessagesOfASteadyStep(16, 1), 2u * 15);
  EXPECT_EQ(MessagesOfASteadyStep(16, 600), 2u * 15);
}

}  // namespace
}  // namespace mydist
