// Tensors on several devices of a rank, and on different kinds of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "device/gpu_job.h"

namespace mydist {
namespace {

using ::testing::AllOf;
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

TEST(EngineGpus, OfOneProcessSetAreOnePerProcess) {
  GpuJob job(2, WithTwoGpus());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "first", 50);
    GpuCaller other(job.shared_device(rank.rank(), 1));
    const GpuCaller::Tensor tensor = other.Make(Numbers(50, 0));
    const Status status = rank.Run(other.InPlace(OpKind::kAllreduce, "elsewhere", tensor));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("tensor 'elsewhere' is on GPU " + std::to_string(rank.rank() + 1)),
                      HasSubstr("uses GPU " + std::to_string(rank.rank()))));
    other.Settle();
    ExpectSum(rank, caller, "second", 50);
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
      Submission removal;
      removal.request.name = "remove";
      removal.request.op = OpKind::kRemoveProcessSet;
      removal.request.shape = Shape({0});
      removal.request.process_set = set;
      EXPECT_TRUE(rank.Run(std::move(removal)).ok());
    }
  });
}

// In one handle, and so in one batch.
TEST(EngineGpus, OfARankAloneMayBeMany) {
  GpuJobOptions options;
  options.gpus_per_rank = 2;
  GpuJob job(1, options);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    GpuCaller other(job.shared_device(0, 1));
    const GpuCaller::Tensor here = caller.Make(Numbers(50, 1));
    const GpuCaller::Tensor there = other.Make(Numbers(70, 2));
    std::vector<Submission> tensors;
    tensors.push_back(caller.InPlace(OpKind::kAllreduce, "here", here));
    tensors.push_back(other.InPlace(OpKind::kAllreduce, "there", there));
    const Status status = rank.Wait(rank.engine->Submit(std::move(tensors)));
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(caller.Read(here), Numbers(50, 1));
    EXPECT_EQ(other.Read(there), Numbers(70, 2));
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
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.ToString();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'x'"), HasSubstr("CPU"), HasSubstr("GPU"),
                                        HasSubstr("1"), HasSubstr("0")));
    ExpectSum(rank, caller, "y", 50);
  });
}

}  // namespace
}  // namespace mydist
