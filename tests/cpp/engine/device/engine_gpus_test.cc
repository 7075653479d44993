// Tensors on several devices of a rank, and on different kinds of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/device/gpu_job.h"

namespace mydist {
namespace {

using ::testing::AllOf;
using testing::DeviceCounts;
using testing::ExpectSum;
using testing::GpuCaller;
using testing::GpuJob;
using testing::GpuJobOptions;
using ::testing::HasSubstr;
using testing::Numbers;
using testing::SumOfNumbers;
using testing::WithNccl;

// Of two ranks that have Numbers(count, 0) both.
std::vector<float> SumOfSame(int64_t count) {
  std::vector<float> sum = Numbers(count, 0);
  for (float& number : sum) number *= 2;
  return sum;
}

GpuJobOptions WithTwoGpus() {
  GpuJobOptions options = WithNccl();
  options.gpus_per_rank = 2;
  return options;
}

// Of ranks 0, 1, …: a tensor lies on the first GPU, or on the second.
GpuCaller& OnSecondIf(bool is_there, GpuCaller& first, GpuCaller& second) {
  return is_there ? second : first;
}

class EngineGpusOfASet : public ::testing::TestWithParam<bool> {
 protected:
  GpuJobOptions Options() const {
    GpuJobOptions options = GetParam() ? WithNccl() : GpuJobOptions{};
    options.gpus_per_rank = 2;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, EngineGpusOfASet, ::testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "OverNccl" : "Staged");
});

// One after the other, and on one rank elsewhere than on the other.
TEST_P(EngineGpusOfASet, MayBeMany) {
  GpuJob job(2, Options());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    GpuCaller other(job.shared_device(rank.rank(), 1));
    ExpectSum(rank, caller, "first", 50);
    ExpectSum(rank, other, "second", 50'000);
    ExpectSum(rank, OnSecondIf(rank.rank() == 0, caller, other), "third", 50);
    ExpectSum(rank, caller, "fourth", 0);
    ExpectSum(rank, other, "fifth", 0);
    ExpectSum(rank, caller, "sixth", 50);
  });
}

// In one handle, and so in one batch, of which each rank has other parts on its second GPU.
TEST_P(EngineGpusOfASet, MayShareABatch) {
  GpuJob job(2, Options());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    GpuCaller other(job.shared_device(rank.rank(), 1));
    std::vector<GpuCaller::Tensor> tensors;
    std::vector<Submission> submissions;
    for (int i = 0; i < 6; ++i) {
      GpuCaller& here = OnSecondIf((i + rank.rank()) % 3 == 0, caller, other);
      tensors.push_back(here.Make(Numbers(100 + i, rank.rank())));
      submissions.push_back(
          here.InPlace(OpKind::kAllreduce, "x" + std::to_string(i), tensors.back()));
    }
    const Status status = testing::RunAll(rank, std::move(submissions));
    EXPECT_TRUE(status.ok()) << status.ToString();
    for (int i = 0; i < 6; ++i) {
      GpuCaller& here = OnSecondIf((i + rank.rank()) % 3 == 0, caller, other);
      EXPECT_EQ(here.Read(tensors[static_cast<size_t>(i)]), SumOfNumbers(100 + i, 2));
    }
  });
}

// However often: the GPU's memory for them does not grow from step to step.
TEST_P(EngineGpusOfASet, UseTheSameMemoryForEveryBatch) {
  GpuJob job(2, Options());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    GpuCaller other(job.shared_device(rank.rank(), 1));
    ExpectSum(rank, caller, "first", 10);
    std::vector<GpuCaller::Tensor> tensors;
    for (int i = 0; i < 3; ++i) tensors.push_back(other.Make(Numbers(1000, 0)));
    int64_t allocations = 0;
    for (int step = 0; step < 6; ++step) {
      if (step == 2) allocations = job.device(rank.rank()).counts().allocations;
      std::vector<Submission> submissions;
      for (size_t i = 0; i < tensors.size(); ++i) {
        submissions.push_back(
            other.InPlace(OpKind::kAllreduce, "x" + std::to_string(i), tensors[i]));
      }
      const Status status = testing::RunAll(rank, std::move(submissions));
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    EXPECT_EQ(job.device(rank.rank()).counts().allocations, allocations);
    other.Settle(tensors.back());
  });
}

// Not in place: the input stays as it is, and so does an output that is not for this rank.
TEST_P(EngineGpusOfASet, MayHaveInputsAndOutputsOfTheirOwn) {
  GpuJob job(2, Options());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "first", 10);
    GpuCaller other(job.shared_device(rank.rank(), 1));
    const std::vector<float> own = Numbers(300, rank.rank());
    for (const OpKind op : {OpKind::kAllreduce, OpKind::kReduce}) {
      const GpuCaller::Tensor input = other.Make(own);
      const GpuCaller::Tensor output = other.Make(std::vector<float>(300, -1.0F));
      Submission submission = other.InPlace(op, "x", input);
      submission.output = output.memory.get();
      if (op == OpKind::kReduce) submission.request.root_rank = 0;
      const Status status = rank.Run(std::move(submission));
      EXPECT_TRUE(status.ok()) << status.ToString();
      output.order->done = input.order->done;
      EXPECT_EQ(other.Read(input), own);
      const bool gets = op == OpKind::kAllreduce || rank.rank() == 0;
      EXPECT_EQ(other.Read(output), gets ? SumOfNumbers(300, 2) : std::vector<float>(300, -1.0F));
    }
  });
}

TEST_P(EngineGpusOfASet, MayGetResultsWhoseShapeComesLate) {
  GpuJob job(2, Options());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "first", 10);
    GpuCaller other(job.shared_device(rank.rank(), 1));
    const GpuCaller::Tensor input = other.Make(Numbers(20 + rank.rank(), rank.rank()));
    GpuCaller::Tensor gathered;
    EXPECT_TRUE(rank.Run(other.Late(OpKind::kAllgather, "gather", input, &gathered)).ok());
    std::vector<float> expected = Numbers(20, 0);
    const std::vector<float> second = Numbers(21, 1);
    expected.insert(expected.end(), second.begin(), second.end());
    EXPECT_EQ(other.Read(gathered), expected);

    const GpuCaller::Tensor dealt = other.Make(Numbers(10, rank.rank()));
    GpuCaller::Tensor received;
    Submission alltoall = other.Late(OpKind::kAlltoall, "deal", dealt, &received);
    alltoall.splits = {4, 6};
    EXPECT_TRUE(rank.Run(std::move(alltoall)).ok());
    EXPECT_EQ(other.Read(received).size(), rank.rank() == 0 ? 8u : 12u);

    GpuCaller::Tensor scattered;
    const GpuCaller::Tensor whole = other.Make(Numbers(30, rank.rank()));
    EXPECT_TRUE(rank.Run(other.Late(OpKind::kReducescatter, "scatter", whole, &scattered)).ok());
    const std::vector<float> sum = SumOfNumbers(30, 2);
    const auto begin = sum.begin() + 15 * rank.rank();
    EXPECT_EQ(other.Read(scattered), std::vector<float>(begin, begin + 15));
  });
}

TEST_P(EngineGpusOfASet, MayBeCompressed) {
  GpuJob job(2, Options());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "first", 10);
    GpuCaller other(job.shared_device(rank.rank(), 1));
    const GpuCaller::Tensor tensor = other.Make(Numbers(20, 0));
    Submission submission = other.InPlace(OpKind::kAllreduce, "x", tensor);
    submission.request.dtype = DataType::kBfloat16;
    submission.is_wide = true;
    EXPECT_TRUE(rank.Run(std::move(submission)).ok());
    EXPECT_EQ(other.Read(tensor), SumOfSame(20));
  });
}

// The host waits for no GPU because of it, where nothing is staged.
TEST(EngineGpusOverNccl, AreBroughtTogetherWithoutTheHost) {
  GpuJob job(2, WithTwoGpus());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "first", 10);
    GpuCaller other(job.shared_device(rank.rank(), 1));
    const GpuCaller::Tensor tensor = other.Make(Numbers(500, rank.rank()));
    const DeviceCounts home = job.shared_device(rank.rank(), 0)->counts();
    const DeviceCounts away = job.shared_device(rank.rank(), 1)->counts();
    EXPECT_TRUE(rank.Run(other.InPlace(OpKind::kAllreduce, "x", tensor)).ok());
    EXPECT_EQ(job.shared_device(rank.rank(), 0)->counts().blocks, home.blocks);
    EXPECT_EQ(job.shared_device(rank.rank(), 1)->counts().blocks, away.blocks);
    // There and back.
    EXPECT_EQ(job.shared_device(rank.rank(), 0)->counts().copies, home.copies + 2);
    EXPECT_EQ(other.Read(tensor), SumOfNumbers(500, 2));
  });
}

TEST_P(EngineGpusOfASet, MayBeUsedBesideARankThatHasJoined) {
  GpuJob job(3, Options());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "first", 10);
    if (rank.rank() != 2) {
      GpuCaller other(job.shared_device(rank.rank(), 1));
      const GpuCaller::Tensor tensor = other.Make(Numbers(70, rank.rank()));
      EXPECT_TRUE(rank.Run(other.InPlace(OpKind::kAllreduce, "x", tensor)).ok());
      EXPECT_EQ(other.Read(tensor), SumOfNumbers(70, 2));
    }
    EXPECT_TRUE(rank.Wait(rank.engine->Join({})).ok());
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
