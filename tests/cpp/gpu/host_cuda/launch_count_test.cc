// The launches of our calls where no stream captures: one launch for any number of segments, after
// at most one copy of a table. The results are right.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

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
    auto scratch = cuda::ConvertScratch::Create();
    ASSERT_TRUE(scratch.ok()) << scratch.status().ToString();
    scratch_ = std::move(scratch).value();
    MYDIST_ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override { MYDIST_ASSERT_CUDA(cudaStreamDestroy(stream_)); }

  // What `launch` asks for.
  template <typename Launch>
  static Workload During(const Launch& launch) {
    const Workload before = TakeWorkload();
    const Status status = launch();
    EXPECT_TRUE(status.ok()) << status.ToString();
    const Workload after = TakeWorkload();
    return {.launches = after.launches - before.launches, .copies = after.copies - before.copies};
  }

  // Launches and checks what they leave.
  Workload Convert(const Conversion& conversion, const SceneLayout& layout) {
    const ConvertScene scene(conversion, layout, Seed());
    DeviceBytes source(scene.source());
    DeviceBytes target(scene.PoisonedTarget());
    const auto segments =
        scene.SegmentsIn(layout.is_in_place ? target.data() : source.data(), target.data());
    const Workload work =
        During([&] { return cuda::LaunchConvert(segments, conversion, *scratch_, stream_); });
    scene.Check(target.Content());
    EXPECT_EQ(source.Content(), scene.source());
    return work;
  }

  static uint64_t Seed() {
    return Scramble(static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed()));
  }

  // None of them 0.
  static std::vector<int64_t> RandomCounts(int segment_count) {
    std::mt19937_64 random(Seed() + static_cast<uint64_t>(segment_count));
    const uint64_t most = segment_count > 2000 ? 60 : 600;
    std::vector<int64_t> counts;
    for (int i = 0; i < segment_count; ++i) {
      counts.push_back(1 + static_cast<int64_t>(random() % (1 + random() % most)));
    }
    return counts;
  }

  const ::testing::ScopedTrace seed_{
      __FILE__, __LINE__,
      "--gtest_random_seed=" + std::to_string(::testing::UnitTest::GetInstance()->random_seed())};
  std::unique_ptr<cuda::ConvertScratch> scratch_;
  cudaStream_t stream_ = nullptr;
};

TEST_F(LaunchCount, IsOneForAnyNumberOfSegments) {
  struct Case {
    int segments;
    int copies;  // What does not fit into parameters is copied in front.
  };
  constexpr Case kCases[] = {{1, 0},    {161, 0},  {192, 0},   {193, 0},
                             {1152, 0}, {1153, 1}, {20'000, 1}};
  const Conversion conversions[] = {
      {DataType::kFloat32, DataType::kFloat32},
      {DataType::kFloat32, DataType::kFloat32, {.multiplier = 1.0, .divisor = 3}},
      {DataType::kFloat32, DataType::kFloat16, {.multiplier = 0.125}},
      {DataType::kBfloat16, DataType::kFloat32},
  };
  for (const Conversion& conversion : conversions) {
    for (const Case& one : kCases) {
      SCOPED_TRACE(NameOf(conversion) + ", " + std::to_string(one.segments) + " segments");
      const Workload work = Convert(conversion, {.counts = RandomCounts(one.segments)});
      EXPECT_EQ(work.launches, 1);
      EXPECT_EQ(work.copies, one.copies);
      if (HasFatalFailure()) return;
    }
  }
}

// Between those that have something to do.
TEST_F(LaunchCount, LeavesOutWhatHasNothingToDo) {
  const Conversion scale = {DataType::kFloat32, DataType::kFloat32, {.multiplier = 0.5}};
  std::vector<int64_t> counts = RandomCounts(1152);
  for (size_t i = 0; i < 500; ++i) {
    counts.insert(counts.begin() + static_cast<int64_t>(3 * i), 0);
  }
  EXPECT_EQ(Convert(scale, {.counts = counts, .is_in_place = true}), (Workload{.launches = 1}));
  EXPECT_EQ(Convert(scale, {.counts = std::vector<int64_t>(2000, 0)}), Workload{});
  // In place a copy has nothing to do.
  const Conversion copy = {DataType::kFloat32, DataType::kFloat32};
  EXPECT_EQ(Convert(copy, {.counts = RandomCounts(2000), .is_in_place = true}), Workload{});
}

}  // namespace
}  // namespace mydist::testing
