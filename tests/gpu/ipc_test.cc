// The kernel between GPUs of a host on real ones: processes that share a GPU, and peers. Skipped
// where there are none, or where they do not reach each other.
#include <gtest/gtest.h>

#include <numeric>

#include "conformance/reduction_reference.h"
#include "gpu/ipc_ranks.h"
#include "ops/device/ipc_collectives.h"
#include "ops/reduce_kernels.h"

namespace mydist::testing {
namespace {

enum class Layout { kOneGpuForTwo, kPeers };

class IpcOnGpus : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    CountGpus(answers_);
    if (answers_->gpu_count == 0) GTEST_SKIP() << "no GPU: " << answers_->why_not.data();
    if (GetParam() == Layout::kOneGpuForTwo) {
      gpus_ = {0, 0};
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
                         ::testing::Values(Layout::kOneGpuForTwo, Layout::kPeers),
                         [](const auto& instance) {
                           return instance.param == Layout::kPeers ? "Peers" : "OneGpuForTwo";
                         });

// The tensor lies `shift` bytes behind an aligned address.
void CheckAllreduceOn(const GpuRank& me, const Reduction& reduction, int64_t count,
                      bool in_two_shots, int64_t shift) {
  std::vector<Elements> inputs;
  std::vector<const void*> sources;
  for (int rank = 0; rank < me.size; ++rank) {
    inputs.push_back(ContributionOf(reduction.dtype, rank, count));
  }
  for (const Elements& input : inputs) sources.push_back(input.data());
  Elements expected(reduction.dtype, count);
  ReduceInRankOrder(sources, expected.data(), count, reduction);

  const auto bytes = static_cast<int64_t>(expected.bytes.size());
  const auto pinned = me.device.AllocatePinned(bytes);
  const auto memory = me.device.Allocate(bytes + shift);
  ASSERT_TRUE(pinned.ok() && memory.ok());
  uint8_t* const tensor = memory->get() + shift;
  std::memcpy(pinned->get(), sources[static_cast<size_t>(me.rank)], static_cast<size_t>(bytes));
  ASSERT_TRUE(me.device.Copy(tensor, pinned->get(), bytes, me.stream).ok());
  const Status reduced = me.link->Allreduce(tensor, count, reduction, in_two_shots);
  ASSERT_TRUE(reduced.ok()) << reduced.ToString();
  ASSERT_TRUE(me.device.Copy(pinned->get(), tensor, bytes, me.stream).ok());
  const auto end = me.device.Record(me.stream);
  ASSERT_TRUE(end.ok());
  const Status waited = me.device.Block(**end);
  ASSERT_TRUE(waited.ok()) << waited.ToString();
  EXPECT_EQ(std::memcmp(pinned->get(), expected.data(), static_cast<size_t>(bytes)), 0)
      << DataTypeName(reduction.dtype) << " " << ReduceOpName(reduction.op) << " of " << count
      << (in_two_shots ? ", in two shots" : "");
}

TEST_P(IpcOnGpus, HaveTheBitsOfTheHost) {
  Run([](const GpuRank& me) {
    for (const DataType dtype : kAllDataTypes) {
      for (const ReduceOp op : kAllReduceOps) {
        if (!FoldsOnDevice(op, dtype)) continue;
        Reduction reduction = Reduction{.dtype = dtype, .op = op}.Resolved(me.size);
        for (const bool in_two_shots : {false, true}) {
          CheckAllreduceOn(me, reduction, 5003, in_two_shots, 0);
          if (dtype != DataType::kBool) reduction.prescale = 0.7;
          CheckAllreduceOn(me, reduction, 777, in_two_shots, SizeOf(dtype));
        }
      }
    }
    EXPECT_TRUE(me.link->Close(kNever, nullptr).ok());
  });
}

TEST_P(IpcOnGpus, ReduceWholeHalves) {
  Run([](const GpuRank& me) {
    for (int round = 0; round < 6; ++round) {
      CheckAllreduceOn(me, {}, kIpcHalfBytes / 4, round % 2 == 1, 0);
      CheckAllreduceOn(me, {}, 3, false, 0);
    }
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
