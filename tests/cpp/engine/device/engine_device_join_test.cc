// Ranks that have joined take part with elements that change nothing, on a GPU of theirs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/device/gpu_job.h"

namespace mydist {
namespace {

using ::testing::Each;
using ::testing::FloatEq;
using testing::GpuCaller;
using testing::GpuJob;
using testing::GpuJobOptions;
using testing::Numbers;
using testing::WithNccl;

void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }

struct Case {
  std::string name;
  GpuJobOptions options;
};

class JoinOnGpu : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Paths, JoinOnGpu,
                         ::testing::Values(Case{"Staged", {}}, Case{"Nccl", WithNccl()},
                                           Case{"HostsFirst",
                                                WithNccl({.hosts = {"a", "b", "b"}})}),
                         [](const auto& instance) { return instance.param.name; });

// Of ranks 0 and 1, without rank 2.
void Reduce(EngineRank& rank, GpuCaller& caller) {
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
    ExpectOk(rank.Wait(rank.engine->Submit(std::move(submissions))));
    for (const GpuCaller::Tensor& tensor : tensors) {
      EXPECT_THAT(caller.Read(tensor), Each(FloatEq(expected))) << ReduceOpName(op);
    }
  }
}

void Move(EngineRank& rank, GpuCaller& caller) {
  const GpuCaller::Tensor input = caller.Make(Numbers(3, rank.rank()));
  GpuCaller::Tensor gathered;
  ExpectOk(rank.Run(caller.Late(OpKind::kAllgather, "gather", input, &gathered)));
  EXPECT_EQ(caller.Read(gathered), (std::vector<float>{0, 1, 2, 1000, 1001, 1002}));
  const GpuCaller::Tensor whole = caller.Make(Numbers(3, rank.rank()));
  GpuCaller::Tensor part;
  ExpectOk(rank.Run(caller.Late(OpKind::kReducescatter, "scatter", whole, &part)));
  EXPECT_EQ(caller.Read(part), std::vector<float>(1, rank.rank() == 0 ? 1000.0F : 1002.0F));
  const GpuCaller::Tensor tensor = caller.Make(Numbers(100, rank.rank()));
  Submission broadcast = caller.InPlace(OpKind::kBroadcast, "b", tensor);
  broadcast.request.root_rank = 1;
  ExpectOk(rank.Run(std::move(broadcast)));
  EXPECT_EQ(caller.Read(tensor), Numbers(100, 1));
}

void WorkWithoutRank2(GpuJob& job) {
  job.OnEveryRank([](EngineRank& rank, GpuCaller& caller) {
    if (rank.rank() != 2) {
      for (int step = 0; step < 2; ++step) {
        Reduce(rank, caller);
        Move(rank, caller);
      }
    }
    ExpectOk(rank.Wait(rank.engine->Join({})));
  });
}

TEST_P(JoinOnGpu, ARankThatHasWorkedTakesPartInEverything) {
  GpuJob job(3, GetParam().options);
  for (int round = 0; round < 2; ++round) {
    job.OnEveryRank([](EngineRank& rank, GpuCaller& caller) {
      const GpuCaller::Tensor tensor = caller.Make(Numbers(10, rank.rank()));
      ExpectOk(rank.Run(caller.InPlace(OpKind::kAllreduce, "all", tensor)));
      EXPECT_EQ(caller.Read(tensor), testing::SumOfNumbers(10, 3));
    });
    WorkWithoutRank2(job);
  }
}

// Nothing has said yet which GPU is this rank's.
TEST_P(JoinOnGpu, SoDoesOneThatHasNeverHadATensor) {
  GpuJob job(3, GetParam().options);
  WorkWithoutRank2(job);
}

}  // namespace
}  // namespace mydist
