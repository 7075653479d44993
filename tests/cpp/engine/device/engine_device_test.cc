// Tensors on GPUs through whole engines, staged and over NCCL: what callers' streams do, what the
// engine does, and the order between them, on devices that fail the test when there is none. Ranks
// that have joined take part with elements that change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/gpu_job.h"

namespace mydist {
namespace {

using ::testing::Each;
using testing::ExpectSums;
using testing::FakeDevice;
using ::testing::FloatEq;
using testing::GpuCaller;
using testing::GpuJob;
using testing::GpuJobOptions;
using testing::Numbers;
using testing::RunAll;
using testing::SumOfNumbers;
using testing::WithNccl;

struct PathCase {
  std::string name;
  int size;
  GpuJobOptions options;
};
const PathCase kPaths[] = {{"Alone", 1, {}},
                           {"StagedPair", 2, {}},
                           {"Staged", 3, {}},
                           {"Nccl", 3, WithNccl()},
                           {"HostsFirst", 3, WithNccl({.hosts = {"a", "b", "b"}})}};
const auto kNameOfPath = [](const auto& instance) { return instance.param.name; };

class EngineOnGpu : public ::testing::TestWithParam<PathCase> {};
INSTANTIATE_TEST_SUITE_P(Paths, EngineOnGpu, ::testing::ValuesIn(kPaths), kNameOfPath);

TEST_P(EngineOnGpu, FusedAllreducesAreOrderedBehindTheCallersStream) {
  GpuJob job(GetParam().size, GetParam().options);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    for (int step = 0; step < 3; ++step) {
      ExpectSums(rank, caller,
                 [&](std::vector<Submission> tensors) { return RunAll(rank, std::move(tensors)); });
    }
  });
}

TEST_P(EngineOnGpu, OutputsAreWrittenBehindWhateverHadTheirMemory) {
  GpuJob job(GetParam().size, GetParam().options);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const int64_t count = 12 * rank.size();
    GpuCaller::Tensor output;
    const GpuCaller::Tensor input = caller.Make(Numbers(count, rank.rank()));
    ExpectOk(rank.Run(caller.Late(OpKind::kAllgather, "gather", input, &output)));
    std::vector<float> all;
    std::vector<float> columns;
    for (int r = 0; r < rank.size(); ++r) {
      const std::vector<float> numbers = Numbers(count, r);
      all.insert(all.end(), numbers.begin(), numbers.end());
      const auto own = numbers.begin() + 12 * rank.rank();
      columns.insert(columns.end(), own, own + 12);
    }
    EXPECT_EQ(caller.Read(output), all);

    const GpuCaller::Tensor whole = caller.Make(Numbers(count, rank.rank()));
    ExpectOk(rank.Run(caller.Late(OpKind::kReducescatter, "scatter", whole, &output)));
    const std::vector<float> sum = SumOfNumbers(count, rank.size());
    const auto begin = sum.begin() + 12 * rank.rank();
    EXPECT_EQ(caller.Read(output), std::vector<float>(begin, begin + 12));

    const GpuCaller::Tensor dealt = caller.Make(Numbers(count, rank.rank()));
    Submission alltoall = caller.Late(OpKind::kAlltoall, "alltoall", dealt, &output);
    alltoall.splits.assign(static_cast<size_t>(rank.size()), 12);
    ExpectOk(rank.Run(std::move(alltoall)));
    EXPECT_EQ(caller.Read(output), columns);

    const GpuCaller::Tensor tensor = caller.Make(Numbers(3000, rank.rank()));
    Submission broadcast = caller.InPlace(OpKind::kBroadcast, "b", tensor);
    broadcast.request.root_rank = rank.size() - 1;
    ExpectOk(rank.Run(std::move(broadcast)));
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
  ExpectError(status, StatusCode::kInternal, {"needs GPU support"});
}

class JoinOnGpu : public ::testing::TestWithParam<PathCase> {};
INSTANTIATE_TEST_SUITE_P(Paths, JoinOnGpu,
                         ::testing::ValuesIn(std::begin(kPaths) + 2, std::end(kPaths)),
                         kNameOfPath);

// Of ranks 0 and 1, without rank 2.
void ReduceWithoutRank2(EngineRank& rank, GpuCaller& caller) {
  for (const auto& [op, expected] :
       std::vector<std::pair<ReduceOp, float>>{{ReduceOp::kSum, 7.0F},
                                               {ReduceOp::kMin, 3.0F},
                                               {ReduceOp::kMax, 4.0F},
                                               {ReduceOp::kAverage, 7.0F / 3.0F}}) {
    const auto own = static_cast<float>(rank.rank() + 3);
    std::vector<GpuCaller::Tensor> tensors;
    std::vector<Submission> submissions;
    for (const size_t count : {6u, 0u, 5000u}) {
      tensors.push_back(caller.Make(std::vector<float>(count, own)));
      submissions.push_back(caller.InPlace(OpKind::kAllreduce,
                                           std::string(ReduceOpName(op)) + std::to_string(count),
                                           tensors.back()));
      submissions.back().request.reduce_op = op;
    }
    ExpectOk(RunAll(rank, std::move(submissions)));
    for (const GpuCaller::Tensor& tensor : tensors) {
      EXPECT_THAT(caller.Read(tensor), Each(FloatEq(expected))) << ReduceOpName(op);
    }
  }
}

void MoveWithoutRank2(EngineRank& rank, GpuCaller& caller) {
  GpuCaller::Tensor output;
  const GpuCaller::Tensor input = caller.Make(Numbers(3, rank.rank()));
  ExpectOk(rank.Run(caller.Late(OpKind::kAllgather, "gather", input, &output)));
  EXPECT_EQ(caller.Read(output), (std::vector<float>{0, 1, 2, 1000, 1001, 1002}));
  const GpuCaller::Tensor whole = caller.Make(Numbers(3, rank.rank()));
  ExpectOk(rank.Run(caller.Late(OpKind::kReducescatter, "scatter", whole, &output)));
  EXPECT_EQ(caller.Read(output), std::vector<float>(1, rank.rank() == 0 ? 1000.0F : 1002.0F));
}

// It has worked before, or nothing has said yet which GPU is its own.
TEST_P(JoinOnGpu, ARankTakesPartInEverything) {
  for (const bool has_worked : {true, false}) {
    GpuJob job(3, GetParam().options);
    job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
      if (has_worked) testing::ExpectSum(rank, caller, "all", 10);
      for (int step = 0; step < 2 && rank.rank() != 2; ++step) {
        ReduceWithoutRank2(rank, caller);
        MoveWithoutRank2(rank, caller);
      }
      ExpectOk(rank.Wait(rank.engine->Join({})));
      testing::ExpectSum(rank, caller, "again", 10);
    });
  }
}

}  // namespace
}  // namespace mydist
