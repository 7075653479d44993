// A rank has one GPU in each process set, and tensors on the CPU beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/device/gpu_job.h"

namespace mydist {
namespace {

using testing::ExpectSum;
using testing::GpuCaller;
using testing::GpuJob;
using testing::GpuJobOptions;
using ::testing::HasSubstr;
using testing::Numbers;
using testing::WithNccl;

GpuJobOptions WithTwoGpus() {
  GpuJobOptions options = WithNccl();
  options.gpus_per_rank = 2;
  return options;
}

// The GPU of the tensor and that of the set.
void ExpectRefusal(const Status& status, int gpu, int gpu_of_set) {
  ExpectError(status, StatusCode::kInvalidArgument,
              {"is on GPU " + std::to_string(gpu) + ",",
               "process set 0 with GPU " + std::to_string(gpu_of_set), "one process for each GPU"});
}

int IndexOf(GpuJob& job, const EngineRank& rank, int number) {
  return job.shared_device(rank.rank(), number)->index();
}

// Rank 1 waits for rank 0, whose first call is refused, and gets what its second one brings.
TEST(EngineGpus, ASecondGpuIsRefusedAtTheCall) {
  GpuJob job(2, WithTwoGpus());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    std::vector<float> on_host(50, 1.0F);
    ExpectSum(rank, caller, "first", 50);
    if (rank.rank() == 0) {
      GpuCaller other(job.shared_device(0, 1));
      const GpuCaller::Tensor there = other.Make(Numbers(50, 0));
      const Status status = rank.Run(other.InPlace(OpKind::kAllreduce, "second", there));
      other.Settle();
      ExpectRefusal(status, IndexOf(job, rank, 1), IndexOf(job, rank, 0));
      EXPECT_THAT(status.message(), HasSubstr("allreduce 'second'"));
    }
    ExpectSum(rank, caller, "second", 50);
    EXPECT_TRUE(rank.Run(Allreduce("on the CPU", &on_host)).ok());
    EXPECT_EQ(on_host, std::vector<float>(50, 2.0F));
  });
}

// What was refused has bound the set to neither GPU, and its names are free.
TEST(EngineGpus, TwoInOneCallAreRefused) {
  for (const bool then_second : {false, true}) {
    GpuJob job(2, WithTwoGpus());
    job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
      GpuCaller other(job.shared_device(rank.rank(), 1));
      const GpuCaller::Tensor here = caller.Make(Numbers(50, 1));
      const GpuCaller::Tensor there = other.Make(Numbers(70, 2));
      std::vector<Submission> tensors;
      tensors.push_back(caller.InPlace(OpKind::kAllreduce, "here", here));
      tensors.push_back(other.InPlace(OpKind::kAllreduce, "there", there));
      ExpectRefusal(testing::RunAll(rank, std::move(tensors)), IndexOf(job, rank, 1),
                    IndexOf(job, rank, 0));
      caller.Settle();
      other.Settle();
      ExpectSum(rank, then_second ? other : caller, "here", 50);
    });
  }
}

// A rank that joins before it has used a GPU takes part with the one of its number.
TEST(EngineGpus, TheOneOfARankThatHasJoinedStays) {
  GpuJob job(2, WithTwoGpus());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    if (rank.rank() == 0) {
      const GpuCaller::Tensor tensor = caller.Make(Numbers(70, 0));
      EXPECT_TRUE(rank.Run(caller.InPlace(OpKind::kAllreduce, "x", tensor)).ok());
      EXPECT_EQ(caller.Read(tensor), Numbers(70, 0));
    }
    EXPECT_TRUE(rank.Wait(rank.engine->Join({})).ok());
    GpuCaller other(job.shared_device(rank.rank(), 1));
    const GpuCaller::Tensor there = other.Make(Numbers(50, 0));
    ExpectRefusal(rank.Run(other.InPlace(OpKind::kAllreduce, "y", there)), IndexOf(job, rank, 1),
                  IndexOf(job, rank, 0));
    other.Settle();
    ExpectSum(rank, caller, "y", 50);
  });
}

TEST(EngineGpus, AnotherProcessSetMayHaveAnother) {
  GpuJob job(2, WithTwoGpus());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    GpuCaller other(job.shared_device(rank.rank(), 1));
    for (int round = 0; round < 2; ++round) {
      ProcessSetId set = 0;
      ASSERT_TRUE(AddSet(rank, {0, 1}, &set).ok());
      ExpectSum(rank, caller, "here", 50);
      ExpectSum(rank, other, "there", 50, set);
      EXPECT_TRUE(RemoveSet(rank, set).ok());
    }
  });
}

TEST(EngineGpus, ATensorThatSomeRanksHaveOnTheCpuIsRefusedOnAll) {
  GpuJob job(3, WithNccl());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    std::vector<float> on_host(50, 1.0F);
    const GpuCaller::Tensor on_gpu = caller.Make(Numbers(50, 0));
    const Status status =
        rank.Run(rank.rank() == 1 ? Allreduce("x", &on_host)
                                  : caller.InPlace(OpKind::kAllreduce, "x", on_gpu));
    caller.Settle();
    ExpectError(status, StatusCode::kMismatch, {"'x'", "CPU", "GPU", "1", "0"});
    ExpectSum(rank, caller, "y", 50);
  });
}

}  // namespace
}  // namespace mydist
