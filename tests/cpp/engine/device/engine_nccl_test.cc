// NCCL behind whole engines: when it is taken, for what, and that all ranks take it or none does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/gpu_job.h"
#include "kernels/element.h"

namespace mydist {
namespace {

using testing::ExpectFusedSum;
using testing::ExpectSum;
using testing::FakeNcclCall;
using testing::GpuCaller;
using testing::GpuFactOf;
using testing::GpuJob;
using testing::GpuJobOptions;
using ::testing::HasSubstr;
using testing::kNcclVersion;
using testing::Numbers;
using testing::ReduceInPassingSets;
using testing::RunAll;
using testing::SumOfNumbers;
using testing::WithNccl;
using Hosts = std::vector<std::string>;
using Kind = FakeNcclCall::Kind;

int CallsOf(GpuJob& job, Kind kind) {
  const std::vector<FakeNcclCall> calls = job.nccl().calls();
  return static_cast<int>(std::count_if(
      calls.begin(), calls.end(), [&](const FakeNcclCall& call) { return call.kind == kind; }));
}

class EngineNccl : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, EngineNccl, ::testing::Values(2, 3));

TEST_P(EngineNccl, FusedAllreducesGoOverIt) {
  GpuJob job(GetParam(), WithNccl());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    for (int step = 0; step < 3; ++step) ExpectFusedSum(job, rank, caller);
    EXPECT_THAT(GpuFactOf(rank), HasSubstr("NCCL 2.32.3 (every rank has NCCL"));
  });
  EXPECT_EQ(CallsOf(job, Kind::kAllReduce), 3 * GetParam());
}

// Pieces of one buffer, as gradients are: nothing is copied, nothing launched but NCCL, and no host
// waits. Those of the last rank lie apart, which is its own business.
TEST_P(EngineNccl, NeighboursAreReducedWhereTheyLie) {
  constexpr int64_t kCount = 600;
  const std::vector<int64_t> ends = {1, 200, kCount};
  GpuJob job(GetParam(), WithNccl());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const std::vector<float> numbers = Numbers(kCount, rank.rank());
    const bool lies_apart = rank.rank() + 1 == rank.size();
    const GpuCaller::Tensor buffer = caller.Make(numbers);
    std::vector<GpuCaller::Tensor> pieces;
    std::vector<Submission> submissions;
    for (int64_t begin = 0; const int64_t end : ends) {
      GpuCaller::Tensor piece{.memory = {buffer.memory, buffer.memory.get() + begin * 4},
                              .count = end - begin};
      if (lies_apart) piece = caller.Make({numbers.begin() + begin, numbers.begin() + end});
      submissions.push_back(caller.InPlace(OpKind::kAllreduce, std::to_string(end), piece));
      pieces.push_back(piece);
      begin = end;
    }
    const testing::DeviceCounts before = job.device(rank.rank()).counts();
    ExpectOk(rank.Wait(rank.engine->Submit(std::move(submissions))));
    const testing::DeviceCounts after = job.device(rank.rank()).counts();
    EXPECT_EQ(after.launches - before.launches, lies_apart ? 2 : 0);
    EXPECT_EQ(after.copies, before.copies);
    EXPECT_EQ(after.blocks, before.blocks);
    EXPECT_EQ(rank.engine->stats().pack_bytes, lies_apart ? kCount * 4 : 0);
    const std::vector<float> sums = SumOfNumbers(kCount, rank.size());
    for (int64_t begin = 0; const GpuCaller::Tensor& piece : pieces) {
      const std::vector<float> expected(sums.begin() + begin, sums.begin() + begin + piece.count);
      EXPECT_EQ(caller.Read(piece), expected);
      begin += piece.count;
    }
  });
  EXPECT_EQ(CallsOf(job, Kind::kAllReduce), GetParam());
}

// As gradients that autograd made anew go to their slots: one launch for all of them, then NCCL,
// and no host waits. One is in its slot already, one is empty; all inputs stay as they were.
TEST_P(EngineNccl, NewTensorsGoToNeighboursInOneLaunch) {
  constexpr int64_t kTensors = 161;
  GpuJob job(GetParam(), WithNccl());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const int64_t count = kTensors * (kTensors - 1) / 2;
    const std::vector<float> numbers = Numbers(count, rank.rank());
    const GpuCaller::Tensor slots = caller.Make(numbers);
    std::vector<GpuCaller::Tensor> news;
    std::vector<Submission> submissions;
    for (int64_t i = 0, begin = 0; i < kTensors; begin += i++) {
      const GpuCaller::Tensor slot{.memory = {slots.memory, slots.memory.get() + begin * 4},
                                   .count = i};
      news.push_back(caller.Make({numbers.begin() + begin, numbers.begin() + begin + i}));
      submissions.push_back(caller.InPlace(OpKind::kAllreduce, std::to_string(i), slot));
      if (i == 7) continue;
      submissions.back().input = news.back().memory.get();
      news.back().order = slot.order;
    }
    const GpuCaller::Tensor result{slots.memory, count, news.back().order};
    const testing::DeviceCounts before = job.device(rank.rank()).counts();
    ExpectOk(RunAll(rank, std::move(submissions)));
    const testing::DeviceCounts after = job.device(rank.rank()).counts();
    EXPECT_EQ(after.launches - before.launches, 1);
    EXPECT_EQ(after.operations - before.operations, 1);
    EXPECT_EQ(after.copies, before.copies);
    EXPECT_EQ(after.blocks, before.blocks);
    EXPECT_EQ(rank.engine->stats().pack_bytes, 0);
    EXPECT_EQ(caller.Read(result), SumOfNumbers(count, rank.size()));
    for (int64_t i = 0, begin = 0; i < kTensors; begin += i++) {
      if (i == 7) continue;
      const std::vector<float> own(numbers.begin() + begin, numbers.begin() + begin + i);
      EXPECT_EQ(caller.Read(news[static_cast<size_t>(i)]), own);
    }
  });
  EXPECT_EQ(CallsOf(job, Kind::kAllReduce), GetParam());
}

// However many there are: one launch casts all on the way to NCCL and one on the way back.
TEST_P(EngineNccl, CompressedTensorsAreCastTogether) {
  constexpr int64_t kTensors = 161;
  GpuJob job(GetParam(), WithNccl());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    std::vector<GpuCaller::Tensor> tensors;
    std::vector<Submission> submissions;
    int64_t count = 0;
    for (int64_t i = 0; i < kTensors; count += i++) {
      // Between two numbers of float16, from 2048 on.
      std::vector<float> numbers = Numbers(i, rank.rank());
      for (float& number : numbers) number += 2048.25F;
      tensors.push_back(caller.Make(numbers));
      submissions.push_back(caller.InPlace(OpKind::kAllreduce, std::to_string(i), tensors.back()));
      submissions.back().request.dtype = DataType::kFloat16;
      submissions.back().is_wide = true;
    }
    const testing::DeviceCounts before = job.device(rank.rank()).counts();
    ExpectOk(RunAll(rank, std::move(submissions)));
    const testing::DeviceCounts after = job.device(rank.rank()).counts();
    EXPECT_EQ(after.launches - before.launches, 2);
    EXPECT_EQ(after.copies, before.copies);
    EXPECT_EQ(after.blocks, before.blocks);
    EXPECT_EQ(rank.engine->stats().pack_bytes, count * 2);
    for (const GpuCaller::Tensor& tensor : tensors) {
      std::vector<float> expected(static_cast<size_t>(tensor.count), 0.0F);
      for (int other = 0; other < rank.size(); ++other) {
        const std::vector<float> numbers = Numbers(tensor.count, other);
        for (size_t i = 0; i < numbers.size(); ++i) {
          expected[i] += HalfToFloat(FloatToHalf(numbers[i] + 2048.25F));
        }
      }
      for (float& sum : expected) sum = HalfToFloat(FloatToHalf(sum));
      EXPECT_EQ(caller.Read(tensor), expected);
    }
  });
  EXPECT_EQ(CallsOf(job, Kind::kAllReduce), GetParam());
}

TEST_P(EngineNccl, WhatItCannotDoIsStaged) {
  GpuJob job(GetParam(), WithNccl());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const GpuCaller::Tensor tensor = caller.Make(Numbers(100, 0));
    Submission adasum = caller.InPlace(OpKind::kAllreduce, "adasum", tensor);
    adasum.request.reduce_op = ReduceOp::kAdasum;
    ExpectOk(rank.Run(std::move(adasum)));
    EXPECT_EQ(caller.Read(tensor), Numbers(100, 0));  // Of equal tensors it is their average.
    ExpectSum(rank, caller, "sum", 100);
  });
  EXPECT_EQ(CallsOf(job, Kind::kAllReduce), GetParam());
}

// As bytes: older NCCLs have no such types.
TEST_P(EngineNccl, MovesFloat8) {
  constexpr int64_t kCount = 3000;
  GpuJob job(GetParam(), WithNccl());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    for (const DataType dtype : {DataType::kFloat8E4m3, DataType::kFloat8E5m2}) {
      const GpuCaller::Tensor tensor = caller.Make(Numbers(kCount, rank.rank()));
      Submission broadcast = caller.InPlace(OpKind::kBroadcast, "b", tensor);
      broadcast.request.dtype = dtype;
      broadcast.request.shape = Shape({kCount * int64_t{sizeof(float)}});
      broadcast.request.root_rank = 1;
      ExpectOk(rank.Run(std::move(broadcast)));
      EXPECT_EQ(caller.Read(tensor), Numbers(kCount, 1));
    }
  });
  EXPECT_EQ(CallsOf(job, Kind::kBroadcast), 2 * GetParam());
  EXPECT_EQ(job.nccl().calls().size(), static_cast<size_t>(2 * GetParam()));
}

struct HostsCase {
  Hosts hosts;
  GpuJobOptions options;
  std::string fact;  // Of each rank.
  int allreduces;    // Of NCCL, for each one of ours.
};

std::vector<HostsCase> HostsCases() {
  const auto on = [](const Hosts& hosts, std::optional<bool> hierarchical = {}) {
    JobOptions options{.hosts = hosts};
    options.config.hierarchical_allreduce = hierarchical;
    return options;
  };
  const std::string levels = "NCCL 2.32.3 inside each host, through host memory between hosts";
  const auto not_on_rank_1 = [](int rank) -> Result<int> {
    if (rank == 1) return Status::Internal("no libnccl.so.2");
    return kNcclVersion;
  };
  JobOptions no_memory = on({"a", "a", "b", "b"});
  no_memory.config.shared_memory = false;
  return {
      {{"a"}, WithNccl(), "in place (the process set has one rank", 0},
      {{"a", "a", "a"}, {.nccl_version = not_on_rank_1}, "rank 1 has no NCCL", 0},
      {{"a", "a", "b", "b", "b"}, WithNccl(on({"a", "a", "b", "b", "b"})), levels, 0},
      // Shared memory is not what NCCL shares inside a host.
      {{"a", "a", "b", "b"}, WithNccl(no_memory), levels, 0},
      {{"a", "a", "b", "b"}, WithNccl(on({"a", "a", "b", "b"}, false)), ": NCCL 2.32.3 (", 4},
      {{"a", "b"}, WithNccl(on({"a", "b"})), ": NCCL 2.32.3 (", 2},
      {{"a", "b"},
       WithNccl(on({"a", "b"}, true)),
       "MYDIST_HIERARCHICAL_ALLREDUCE=1, and each host has one rank",
       0},
  };
}

TEST(EngineNcclHosts, DecideWhatGoesOverIt) {
  for (const HostsCase& one : HostsCases()) {
    SCOPED_TRACE(one.fact);
    GpuJob job(static_cast<int>(one.hosts.size()), one.options);
    job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
      EXPECT_EQ(GpuFactOf(rank), "");
      ExpectSum(rank, caller, "large", 70001);
      ExpectSum(rank, caller, "small", 3);
      EXPECT_THAT(GpuFactOf(rank), HasSubstr(one.fact));
      const GpuCaller::Tensor input = caller.Make(Numbers(7, rank.rank()));
      GpuCaller::Tensor gathered;
      EXPECT_TRUE(rank.Run(caller.Late(OpKind::kAllgather, "gather", input, &gathered)).ok());
      EXPECT_EQ(caller.Read(gathered).size(), 7 * one.hosts.size());
    });
    EXPECT_EQ(CallsOf(job, Kind::kAllReduce), 2 * one.allreduces);
    EXPECT_EQ(CallsOf(job, Kind::kAllGather), one.allreduces) << "there are no two levels of it";
    // Uneven parts, see NcclCollectives.
    const bool has_levels = one.fact.find("inside each host") != std::string::npos;
    EXPECT_EQ(CallsOf(job, Kind::kReduce) > 0, has_levels);
  }
}

// Each rank's part is staged in as many chunks as overlap, however many ranks share a host's work.
TEST(EngineNcclHosts, ManyRanksOnAHostKeepTheirPipelinesFull) {
  JobOptions hosts{.hosts = {"a", "a", "a", "a", "b", "b", "b", "b"}};
  constexpr int64_t kCount = int64_t{16} << 20;  // 64 MiB.
  GpuJob job(8, WithNccl(hosts));
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const GpuCaller::Tensor tensor = caller.Empty(kCount);
    ExpectOk(rank.Run(caller.InPlace(OpKind::kAllreduce, "x", tensor)));
    caller.Settle(tensor);
    EXPECT_GE(job.device(rank.rank()).counts().most_fetches_in_flight, 4);
    EXPECT_EQ(rank.engine->stats().most_staged_chunks, 8);
  });
}

Submission Transfer(GpuCaller& caller, const std::string& name, const GpuCaller::Tensor& tensor) {
  Submission submission = caller.InPlace(OpKind::kSendReceive, name, tensor);
  submission.request.ranks = {0, 1};
  return submission;
}

// Two ranks cannot agree for all: they wait for a batch that needs everybody.
TEST(EngineNcclTransfers, AreStagedUntilAllHaveAgreed) {
  GpuJob job(3, WithNccl());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    if (rank.rank() < 2) {
      const GpuCaller::Tensor tensor = caller.Make(Numbers(50, rank.rank()));
      EXPECT_TRUE(rank.Run(Transfer(caller, "before", tensor)).ok());
      EXPECT_EQ(caller.Read(tensor), Numbers(50, 0));
      EXPECT_EQ(GpuFactOf(rank), "");
    }
    ExpectSum(rank, caller, "x", 10);
    if (rank.rank() == 2) return;
    const GpuCaller::Tensor again = caller.Make(Numbers(60, rank.rank()));
    EXPECT_TRUE(rank.Run(Transfer(caller, "behind", again)).ok());
    EXPECT_EQ(caller.Read(again), Numbers(60, 0));
  });
  EXPECT_EQ(CallsOf(job, Kind::kSend), 1);
  EXPECT_EQ(CallsOf(job, Kind::kReceive), 1);
}

TEST(EngineNcclSets, HaveACommunicatorEachAndLeaveItInOrder) {
  GpuJob job(3, WithNccl());
  ReduceInPassingSets(job, 2, [](EngineRank& rank, ProcessSetId set) {
    EXPECT_THAT(GpuFactOf(rank), HasSubstr("set " + std::to_string(set) + ": NCCL 2.32.3"));
  });
  job.Shutdown();
  EXPECT_EQ(job.nccl().aborts(), 0) << "a communicator was not closed in order";
}

}  // namespace
}  // namespace mydist
