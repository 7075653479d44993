// The launches of our calls where no stream captures: one for each thousand of segments, and no
// copy. The results are right.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "conformance/status_checks.h"
#include "gpu/convert_scene.h"
#include "gpu/device_bytes.h"
#include "gpu/host_cuda/host_cuda.h"
#include "gpu/kernels/convert.h"

namespace mydist::testing {
namespace {

using host_cuda::TakeWorkload;
using host_cuda::Workload;

class LaunchCount : public ::testing::Test {
 protected:
  void SetUp() override {
    MYDIST_ASSERT_CUDA(cudaSetDevice(0));
    ExpectOk(cuda::LoadConvertKernels());
    MYDIST_ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override { MYDIST_ASSERT_CUDA(cudaStreamDestroy(stream_)); }

  // What `launch` asks for.
  template <typename Launch>
  static Workload During(const Launch& launch) {
    const Workload before = TakeWorkload();
    ExpectOk(launch());
    const Workload after = TakeWorkload();
    return {.launches = after.launches - before.launches, .copies = after.copies - before.copies};
  }

  // Launches and checks what they leave.
  Workload Convert(const Conversion& conversion, const SceneLayout& layout) {
    const ConvertScene scene(conversion, layout, layout.counts.size());
    DeviceBytes source(scene.source());
    DeviceBytes target(scene.PoisonedTarget());
    const auto segments =
        scene.SegmentsIn(layout.is_in_place ? target.data() : source.data(), target.data());
    const Workload work =
        During([&] { return cuda::LaunchConvert(segments, conversion, 4, stream_); });
    scene.Check(target.Content());
    EXPECT_EQ(source.Content(), scene.source());
    return work;
  }

  // None of them 0.
  static std::vector<int64_t> Counts(int segment_count) {
    std::vector<int64_t> counts;
    for (int i = 0; i < segment_count; ++i) {
      counts.push_back(1 + i * 37 % (segment_count > 2000 ? 60 : 600));
    }
    return counts;
  }

  cudaStream_t stream_ = nullptr;
};

TEST_F(LaunchCount, IsOneWhereTheSegmentsFit) {
  const Conversion cast = {DataType::kFloat32, DataType::kFloat16, {.multiplier = 0.125}};
  for (const auto& [segments, launches] : {std::pair{1, 1}, {161, 1}, {1152, 1}, {1153, 2}}) {
    EXPECT_EQ(Convert(cast, {.counts = Counts(segments)}), (Workload{.launches = launches}))
        << segments << " segments";
  }
}

// Between those that have something to do.
TEST_F(LaunchCount, LeavesOutWhatHasNothingToDo) {
  const Conversion scale = {DataType::kFloat32, DataType::kFloat32, {.multiplier = 0.5}};
  std::vector<int64_t> counts = Counts(1152);
  for (size_t i = 0; i < 500; ++i) {
    counts.insert(counts.begin() + static_cast<int64_t>(3 * i), 0);
  }
  EXPECT_EQ(Convert(scale, {.counts = counts, .is_in_place = true}), (Workload{.launches = 1}));
  EXPECT_EQ(Convert(scale, {.counts = std::vector<int64_t>(2000, 0)}), Workload{});
  // In place a copy has nothing to do.
  const Conversion copy = {DataType::kFloat32, DataType::kFloat32};
  EXPECT_EQ(Convert(copy, {.counts = Counts(2000), .is_in_place = true}), Workload{});
}

}  // namespace
}  // namespace mydist::testing
