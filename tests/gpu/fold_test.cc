// The kernel that folds what has come from other ranks, on a GPU.
#include <gtest/gtest.h>

#include "gpu/device_bytes.h"
#include "gpu/fold_scene.h"
#include "gpu/kernels/rank_fold.h"

namespace mydist::testing {
namespace {

class FoldOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
    if (count == 0) GTEST_SKIP() << "no GPU: CUDA sees none";
    MYDIST_ASSERT_CUDA(cudaSetDevice(0));
    const Status loaded = cuda::LoadFoldKernels();
    ASSERT_TRUE(loaded.ok()) << loaded.ToString();
    MYDIST_ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    if (stream_ != nullptr) MYDIST_ASSERT_CUDA(cudaStreamDestroy(stream_));
  }

  void Check(const Reduction& reduction, const FoldLayout& layout) {
    const int seed = ::testing::UnitTest::GetInstance()->random_seed();
    SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
    const FoldScene scene(reduction, layout, static_cast<uint64_t>(seed));
    DeviceBytes own(scene.own());
    DeviceBytes others(scene.others());
    DeviceBytes output(scene.PoisonedOutput());
    const Status status =
        cuda::LaunchRankFold(scene.In(own.data(), others.data(), output.data()), stream_);
    ASSERT_TRUE(status.ok()) << status.ToString();
    scene.Check(own.Content(), others.Content(), output.Content());
  }

  cudaStream_t stream_ = nullptr;
};

TEST_F(FoldOnGpu, EveryReduction) {
  for (const int size : {1, 2, 3, 9}) {
    int number = 0;
    for (const Reduction& reduction : EveryFold()) {
      ++number;
      Check(reduction, {.size = size,
                        .rank = number % size,
                        .count = 5003,
                        .is_in_place = number % 2 == 0,
                        .own_shift = number % 3,
                        .output_shift = number % 5});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(FoldOnGpu, SmallAndLargeOnes) {
  for (const int64_t count : {1, 2, 3, 5, 255, 1024, 1025, 1'000'003}) {
    Check({.dtype = DataType::kFloat32}, {.size = 4, .rank = 2, .count = count});
    Check({.dtype = DataType::kBfloat16}, {.size = 2, .rank = 1, .count = count, .own_shift = 1});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace mydist::testing
