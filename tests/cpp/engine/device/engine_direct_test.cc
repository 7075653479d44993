// Engines whose network takes memory of GPUs, as a CUDA-aware MPI does: who takes that way, and
// that nothing passes through host memory then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <vector>

#include "engine/device/gpu_job.h"

namespace mydist {
namespace {

using testing::ExpectFusedSum;
using testing::ExpectSum;
using testing::ExpectSums;
using testing::GpuCaller;
using testing::GpuFactOf;
using testing::GpuJob;
using testing::GpuJobOptions;
using ::testing::HasSubstr;
using testing::Numbers;
using testing::RunAll;
using testing::SumOfNumbers;
using testing::WithNccl;

GpuJobOptions Direct(GpuJobOptions options = {}) {
  options.takes_device_memory = [](int) { return true; };
  return options;
}

GpuJobOptions OnHosts(std::vector<std::string> hosts) {
  return {.job = {.hosts = std::move(hosts)}};
}

// `body`, and no byte of a tensor is copied to the host or from there: copies that a caller makes
// itself are not counted.
void ExpectNoStaging(const EngineRank& rank, const std::function<void()>& body) {
  body();
  EXPECT_EQ(rank.engine->stats().most_staged_chunks, 0);
}

TEST(EngineDirect, ReducesWithoutTheHost) {
  GpuJob job(3, Direct());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectNoStaging(rank, [&] {
      ExpectSum(rank, caller, "large", 70001);
      ExpectSum(rank, caller, "small", 3);
      ExpectSums(rank, caller,
                 [&](std::vector<Submission> tensors) { return RunAll(rank, std::move(tensors)); });
    });
    EXPECT_THAT(GpuFactOf(rank),
                HasSubstr("GPU path: by CUDA-aware MPI (this rank was given no NCCL"));
  });
}

TEST(EngineDirect, MovesWithoutTheHost) {
  GpuJob job(3, Direct());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectNoStaging(rank, [&] {
      const GpuCaller::Tensor input = caller.Make(Numbers(700, rank.rank()));
      GpuCaller::Tensor gathered;
      EXPECT_TRUE(rank.Run(caller.Late(OpKind::kAllgather, "gather", input, &gathered)).ok());
      std::vector<float> expected;
      for (int r = 0; r < 3; ++r) {
        const std::vector<float> part = Numbers(700, r);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      EXPECT_EQ(caller.Read(gathered), expected);
    });
  });
}

TEST(EngineDirect, OneRankWhoseNetworkDoesNotKeepsAllFromIt) {
  GpuJobOptions options;
  options.takes_device_memory = [](int rank) { return rank != 1; };
  GpuJob job(3, options);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "x", 70001);
    EXPECT_THAT(GpuFactOf(rank), HasSubstr("GPU path: through host memory"));
    EXPECT_GT(rank.engine->stats().most_staged_chunks, 0);
  });
}

// NCCL first; what it does not do goes over the network.
TEST(EngineDirect, ComesBehindNccl) {
  GpuJob job(2, Direct(WithNccl()));
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectNoStaging(rank, [&] { ExpectFusedSum(job, rank, caller); });
    EXPECT_THAT(GpuFactOf(rank), HasSubstr("GPU path: NCCL 2.32.3 ("));
  });
}

TEST(EngineDirectHosts, AreLinkedByItWithNcclInside) {
  GpuJob job(5, Direct(WithNccl({.hosts = {"a", "a", "b", "b", "b"}})));
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectNoStaging(rank, [&] {
      ExpectSum(rank, caller, "large", 70001);
      ExpectSum(rank, caller, "small", 3);
      const GpuCaller::Tensor input = caller.Make(Numbers(7, rank.rank()));
      GpuCaller::Tensor gathered;
      EXPECT_TRUE(rank.Run(caller.Late(OpKind::kAllgather, "gather", input, &gathered)).ok());
      EXPECT_EQ(caller.Read(gathered).size(), 35u);
    });
    EXPECT_THAT(GpuFactOf(rank),
                HasSubstr("NCCL 2.32.3 inside each host, by CUDA-aware MPI between hosts"));
  });
  EXPECT_GT(job.nccl().calls().size(), 0u);
}

// Both levels over the network; sums have the order of hosts.
TEST(EngineDirectHosts, DoWithoutNccl) {
  GpuJob job(5, Direct(OnHosts({"a", "b", "a", "b", "b"})));
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectNoStaging(rank, [&] {
      ExpectSum(rank, caller, "large", 70001);
      ExpectSum(rank, caller, "small", 3);
    });
    EXPECT_THAT(GpuFactOf(rank), HasSubstr("GPU path: by CUDA-aware MPI"));
  });
}

// One rank on each: there is no order of hosts to be kept.
TEST(EngineDirectHosts, MayHaveOneRankEach) {
  GpuJobOptions options = Direct(WithNccl({.hosts = {"a", "b"}}));
  options.job.config.hierarchical_allreduce = true;
  GpuJob job(2, options);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectNoStaging(rank, [&] { ExpectSum(rank, caller, "x", 70001); });
    EXPECT_THAT(GpuFactOf(rank), HasSubstr("GPU path: by CUDA-aware MPI"));
  });
  EXPECT_TRUE(job.nccl().calls().empty());
}

// The same bits on each path: those of a sum by hosts, which one round among all would not have.
TEST(EngineDirectHosts, SumsKeepTheirOrderWithoutTwoLevels) {
  GpuJobOptions options = Direct(OnHosts({"a", "a", "b", "b"}));
  options.job.config.hierarchical_allreduce = false;
  GpuJob job(4, options);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    // By hosts: (1 + 2^-24) + (2^-24 + 2^-24) is 1 + 2^-23; from rank 0 on it would be 1.
    const GpuCaller::Tensor tensor =
        caller.Make(std::vector<float>(100, rank.rank() == 0 ? 1.0F : 0x1p-24F));
    EXPECT_TRUE(rank.Run(caller.InPlace(OpKind::kAllreduce, "x", tensor)).ok());
    EXPECT_EQ(caller.Read(tensor), std::vector<float>(100, 1.0F + 0x1p-23F));
    EXPECT_GT(rank.engine->stats().most_staged_chunks, 0);
    EXPECT_THAT(GpuFactOf(rank), HasSubstr("GPU path: through host memory"));
  });
}

TEST(EngineDirectHosts, SumsAreOfThatOrderOverTheNetworkToo) {
  GpuJob job(4, Direct(OnHosts({"a", "a", "b", "b"})));
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectNoStaging(rank, [&] {
      const GpuCaller::Tensor tensor =
          caller.Make(std::vector<float>(100, rank.rank() == 0 ? 1.0F : 0x1p-24F));
      EXPECT_TRUE(rank.Run(caller.InPlace(OpKind::kAllreduce, "x", tensor)).ok());
      EXPECT_EQ(caller.Read(tensor), std::vector<float>(100, 1.0F + 0x1p-23F));
    });
  });
}

}  // namespace
}  // namespace mydist
