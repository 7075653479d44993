// The kernel between GPUs of a host on real ones: processes that share a GPU, and peers. Skipped
// where there are none, or where they do not reach each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "algorithms/device/ipc_collectives.h"
#include "conformance/reduction_reference.h"
#include "gpu/ipc_ranks.h"
#include "kernels/reduction.h"

namespace mydist::testing {
namespace {

enum class Layout { kOneGpuForTwo, kOneGpuForThree, kOneGpuForFour, kPeers };

std::string NameOf(const ::testing::TestParamInfo<Layout>& instance) {
  switch (instance.param) {
    case Layout::kOneGpuForTwo:
      return "OneGpuForTwo";
    case Layout::kOneGpuForThree:
      return "OneGpuForThree";
    case Layout::kOneGpuForFour:
      return "OneGpuForFour";
    case Layout::kPeers:
      break;
  }
  return "Peers";
}

class IpcOnGpus : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    CountGpus(answers_);
    if (answers_->gpu_count == 0) GTEST_SKIP() << "no GPU: " << answers_->why_not.data();
    if (GetParam() != Layout::kPeers) {
      gpus_.assign(size_t{2} + static_cast<size_t>(GetParam()), 0);
      return;
    }
    if (answers_->gpu_count < 2) GTEST_SKIP() << "peers need two GPUs, and there is one";
    gpus_.resize(static_cast<size_t>(std::min(answers_->gpu_count, 4)));
    std::iota(gpus_.begin(), gpus_.end(), 0);
  }

  void Run(const std::function<void(const GpuRank&)>& body) {
    EXPECT_TRUE(RunOnGpus(gpus_, answers_, body));
    if (answers_->why_not[0] != '\0') GTEST_SKIP() << answers_->why_not.data();
  }

  GpuAnswers* const answers_ = GpuAnswers::Shared();
  std::vector<int> gpus_;
};
INSTANTIATE_TEST_SUITE_P(Layouts, IpcOnGpus,
                         ::testing::Values(Layout::kOneGpuForTwo, Layout::kPeers), NameOf);

// Ranks that share a GPU take turns on it, so these make fewer launches.
class IpcAtRandom : public IpcOnGpus {};
INSTANTIATE_TEST_SUITE_P(Layouts, IpcAtRandom,
                         ::testing::Values(Layout::kOneGpuForTwo, Layout::kOneGpuForThree,
                                           Layout::kOneGpuForFour, Layout::kPeers),
                         NameOf);

// The same in all processes of a run, which have been forked from one.
int Seed() { return ::testing::UnitTest::GetInstance()->random_seed(); }

struct Shape {
  int64_t count = 0;
  bool in_two_shots = false;
  int64_t shift = 0;  // Bytes from an aligned address to the tensor; ranks may differ.
};

constexpr int64_t kGuardBytes = 256;  // Keeps alignment.

// Memory with the tensor in it, poisoned around it. Every other one ends with the tensor, so that
// compute-sanitizer sees an access beyond.
std::vector<uint8_t> Guarded(const Elements& tensor, const Shape& shape) {
  constexpr uint8_t kPoison = 0xA5;
  const size_t behind = shape.count % 2 == 0 ? kGuardBytes : 0;
  std::vector<uint8_t> memory(static_cast<size_t>(kGuardBytes + shape.shift), kPoison);
  memory.insert(memory.end(), tensor.bytes.begin(), tensor.bytes.end());
  memory.insert(memory.end(), behind, kPoison);
  return memory;
}

// The tensor in `memory`, which goes to the GPU and comes back.
void AllreduceIn(std::vector<uint8_t>& memory, const GpuRank& me, const Reduction& reduction,
                 const Shape& shape) {
  const auto bytes = static_cast<int64_t>(memory.size());
  const auto pinned = me.device.AllocatePinned(bytes);
  const auto on_gpu = me.device.Allocate(bytes);
  ASSERT_TRUE(pinned.ok() && on_gpu.ok());
  uint8_t* const tensor = on_gpu->get() + kGuardBytes + shape.shift;
  std::copy(memory.begin(), memory.end(), pinned->get());
  ASSERT_TRUE(me.device.Copy(on_gpu->get(), pinned->get(), bytes, me.stream).ok());
  const Status reduced = me.link->Allreduce(tensor, shape.count, reduction, shape.in_two_shots);
  ASSERT_TRUE(reduced.ok()) << reduced.ToString();
  ASSERT_TRUE(me.device.Copy(pinned->get(), on_gpu->get(), bytes, me.stream).ok());
  const auto end = me.device.Record(me.stream);
  ASSERT_TRUE(end.ok());
  const Status waited = me.device.Block(**end);
  ASSERT_TRUE(waited.ok()) << waited.ToString();
  std::copy_n(pinned->get(), bytes, memory.begin());
}

// Has the bits of the host and the numbers of float64, and nothing but the tensor is written.
// `reduction` is as callers have it: not resolved.
void CheckAllreduceOn(const GpuRank& me, const Reduction& reduction, const Shape& shape) {
  SCOPED_TRACE("rank " + std::to_string(me.rank) + ", " + std::to_string(shape.shift) +
               " bytes behind an aligned address" + (shape.in_two_shots ? ", in two shots" : "") +
               ", --gtest_random_seed=" + std::to_string(Seed()));
  const std::vector<Elements> inputs = ContributionsOf(reduction.dtype, me.size, shape.count,
                                                       Scramble(static_cast<uint64_t>(Seed())));
  std::vector<const void*> sources;
  for (const Elements& input : inputs) sources.push_back(input.data());
  Elements expected(reduction.dtype, shape.count);
  const Reduction resolved = reduction.Resolved(me.size);
  ReduceInRankOrder(sources, expected.data(), shape.count, resolved);

  std::vector<uint8_t> memory = Guarded(inputs[static_cast<size_t>(me.rank)], shape);
  AllreduceIn(memory, me, resolved, shape);
  Elements result(reduction.dtype, shape.count);
  std::copy_n(memory.begin() + kGuardBytes + shape.shift, result.bytes.size(),
              result.bytes.begin());
  ExpectReduced(result, inputs, reduction);
  EXPECT_TRUE(result.bytes == expected.bytes)
      << "other bits than the host's: " << DataTypeName(reduction.dtype) << " "
      << ReduceOpName(reduction.op) << " of " << shape.count;
  EXPECT_TRUE(memory == Guarded(result, shape)) << "wrote beyond the tensor";
}

TEST_P(IpcOnGpus, HaveTheBitsOfTheHost) {
  Run([](const GpuRank& me) {
    for (const DataType dtype : kAllDataTypes) {
      for (const ReduceOp op : kAllReduceOps) {
        if (!FoldsOnDevice(op, dtype)) continue;
        Reduction reduction = {.dtype = dtype, .op = op};
        for (const bool in_two_shots : {false, true}) {
          CheckAllreduceOn(me, reduction, {.count = 5003, .in_two_shots = in_two_shots});
          if (dtype != DataType::kBool) reduction.prescale = 0.7;
          CheckAllreduceOn(me, reduction,
                           {.count = 778, .in_two_shots = in_two_shots, .shift = SizeOf(dtype)});
        }
      }
    }
    EXPECT_TRUE(me.link->Close(kNever, nullptr).ok());
  });
}

TEST_P(IpcOnGpus, ReduceWholeHalves) {
  Run([](const GpuRank& me) {
    for (int round = 0; round < 6; ++round) {
      CheckAllreduceOn(me, {}, {.count = kIpcHalfBytes / 4, .in_two_shots = round % 2 == 1});
      CheckAllreduceOn(me, {}, {.count = 3});
    }
    EXPECT_TRUE(me.link->Close(kNever, nullptr).ok());
  });
}

// The same on all ranks, drawn from the same numbers.
Reduction DrawReduction(std::mt19937_64& random) {
  Reduction reduction;
  do {
    reduction.dtype = kAllDataTypes[random() % std::size(kAllDataTypes)];
    reduction.op = kAllReduceOps[random() % std::size(kAllReduceOps)];
  } while (!FoldsOnDevice(reduction.op, reduction.dtype));
  if (reduction.dtype == DataType::kBool) return reduction;
  if (random() % 2 == 0) reduction.prescale = 0.7;
  if (random() % 2 == 0) reduction.postscale = 1.5;
  return reduction;
}

TEST_P(IpcAtRandom, ReduceAnyCountAtAnyAddress) {
  Run([](const GpuRank& me) {
    std::mt19937_64 random(Scramble(static_cast<uint64_t>(Seed())));
    std::mt19937_64 own(Scramble(static_cast<uint64_t>(Seed() + me.rank)) + 1);
    for (int round = 0; round < 60; ++round) {
      const Reduction reduction = DrawReduction(random);
      const uint64_t most = 1 + random() % 20'000;
      const Shape shape = {.count = 1 + static_cast<int64_t>(random() % most),
                           .in_two_shots = random() % 2 == 0,
                           .shift = SizeOf(reduction.dtype) * static_cast<int64_t>(own() % 20)};
      CheckAllreduceOn(me, reduction, shape);
    }
    // Slices that are not of one size.
    CheckAllreduceOn(me, {}, {.count = kIpcHalfBytes / 4, .in_two_shots = true});
    EXPECT_TRUE(me.link->Close(kNever, nullptr).ok());
  });
}

TEST_P(IpcOnGpus, AnAbortEndsTheKernel) {
  Run([](const GpuRank& me) {
    if (me.rank == 1) return;  // Launches nothing.
    const auto memory = me.device.Allocate(4000);
    ASSERT_TRUE(memory.ok());
    ASSERT_TRUE(me.link->Allreduce(memory->get(), 1000, {}, false).ok());
    const auto end = me.device.Record(me.stream);
    ASSERT_TRUE(end.ok());
    me.link->Abort(Status::PeerLost("rank 1 launches nothing"));
    const Status waited = me.device.Block(**end);
    EXPECT_TRUE(waited.ok()) << waited.ToString();
    EXPECT_EQ(me.link->Check().code(), StatusCode::kPeerLost);
  });
}

}  // namespace
}  // namespace mydist::testing
