// Tensors on GPUs through whole engines: what callers' streams do, what the engine does, and the
// order between them, on devices that fail the test when there is none.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/device/gpu_job.h"

namespace mydist {
namespace {

using testing::ExpectSums;
using testing::FakeDevice;
using testing::GpuCaller;
using testing::GpuJob;
using testing::Numbers;
using testing::RunAll;
using testing::SumOfNumbers;

class EngineOnGpu : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, EngineOnGpu, ::testing::Values(1, 2, 3));

TEST_P(EngineOnGpu, FusedAllreducesAreOrderedBehindTheCallersStream) {
  GpuJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    for (int step = 0; step < 3; ++step) {
      ExpectSums(rank, caller,
                 [&](std::vector<Submission> tensors) { return RunAll(rank, std::move(tensors)); });
    }
  });
}

TEST_P(EngineOnGpu, OutputsAreWrittenBehindWhateverHadTheirMemory) {
  GpuJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const int64_t count = 12 * rank.size();
    const GpuCaller::Tensor input = caller.Make(Numbers(count, rank.rank()));
    GpuCaller::Tensor gathered;
    const Status status = rank.Run(caller.Late(OpKind::kAllgather, "gather", input, &gathered));
    EXPECT_TRUE(status.ok()) << status.ToString();
    std::vector<float> expected;
    for (int r = 0; r < rank.size(); ++r) {
      const std::vector<float> part = Numbers(count, r);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_EQ(caller.Read(gathered), expected);

    const GpuCaller::Tensor whole = caller.Make(Numbers(count, rank.rank()));
    GpuCaller::Tensor part;
    const Status scattered = rank.Run(caller.Late(OpKind::kReducescatter, "scatter", whole, &part));
    EXPECT_TRUE(scattered.ok()) << scattered.ToString();
    const std::vector<float> sum = SumOfNumbers(count, rank.size());
    const auto begin = sum.begin() + 12 * rank.rank();
    EXPECT_EQ(caller.Read(part), std::vector<float>(begin, begin + 12));

    const GpuCaller::Tensor dealt = caller.Make(Numbers(count, rank.rank()));
    GpuCaller::Tensor received;
    Submission alltoall = caller.Late(OpKind::kAlltoall, "alltoall", dealt, &received);
    alltoall.splits.assign(static_cast<size_t>(rank.size()), 12);
    const Status swapped = rank.Run(std::move(alltoall));
    EXPECT_TRUE(swapped.ok()) << swapped.ToString();
    std::vector<float> columns;
    for (int r = 0; r < rank.size(); ++r) {
      const std::vector<float> numbers = Numbers(count, r);
      const auto first = numbers.begin() + 12 * rank.rank();
      columns.insert(columns.end(), first, first + 12);
    }
    EXPECT_EQ(caller.Read(received), columns);
  });
}

TEST_P(EngineOnGpu, BroadcastReachesEveryGpu) {
  GpuJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const GpuCaller::Tensor tensor = caller.Make(Numbers(3000, rank.rank()));
    Submission submission = caller.InPlace(OpKind::kBroadcast, "b", tensor);
    submission.request.root_rank = rank.size() - 1;
    const Status status = rank.Run(std::move(submission));
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(caller.Read(tensor), Numbers(3000, rank.size() - 1));
  });
}

TEST(EngineOnGpuMistake, ATensorOnAGpuNeedsOne) {
  EngineJob job(1);
  const auto device = std::make_shared<FakeDevice>();
  GpuCaller::Tensor tensor;
  GpuCaller caller(device);
  tensor = caller.Make(Numbers(10, 0));
  const Status status = job.rank(0).Run(caller.InPlace(OpKind::kAllreduce, "x", tensor));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("needs GPU support"), std::string::npos) << status.ToString();
}

}  // namespace
}  // namespace mydist
