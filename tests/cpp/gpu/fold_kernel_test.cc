// The kernel behind Device::Fold, every thread of it, on the host: the bits of the host and the
// numbers of float64, whatever the size, the address or the number of ranks.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "fakes/aligned_bytes.h"
#include "gpu/fold_scene.h"
#include "gpu/kernels/rank_fold_thread.h"

namespace mydist::testing {
namespace {

void FoldOnHost(const RankFold& fold, uint32_t most_blocks) {
  cuda::VisitFoldElement(fold.reduction.dtype, [&]<typename T>(T, int parts) {
    const cuda::FoldLaunch launch = cuda::FoldLaunchOf(fold, parts);
    const uint32_t blocks = std::min(cuda::FoldBlocksOf<T>(launch), most_blocks);
    for (uint32_t block = 0; block < blocks; ++block) {
      for (uint32_t thread = 0; thread < cuda::kFoldThreads; ++thread) {
        cuda::FoldAsThread<T>(launch, {block, blocks, thread});
      }
    }
  });
}

void Check(const Reduction& reduction, const FoldLayout& layout, uint64_t salt = 0,
           uint32_t most_blocks = 1000) {
  const FoldScene scene(reduction, layout, salt);
  AlignedBytes own(scene.own());
  AlignedBytes others(scene.others());
  AlignedBytes output(scene.PoisonedOutput());
  FoldOnHost(scene.In(own.data(), others.data(), output.data()), most_blocks);
  scene.Check(own.Content(), others.Content(), output.Content());
}

class FoldKernel : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FoldKernel, ::testing::Values(1, 2, 3, 8, 9, 20));

TEST_P(FoldKernel, EveryReduction) {
  const int size = GetParam();
  int number = 0;
  for (const Reduction& reduction : EveryFold()) {
    ++number;
    Check(reduction, {.size = size,
                      .rank = number % size,
                      .count = 517,
                      .is_in_place = number % 2 == 0,
                      .own_shift = number % 3,
                      .output_shift = number % 5});
  }
}

TEST_P(FoldKernel, AnySizeAtAnyAddress) {
  const int seed = ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat16, DataType::kUint8,
                                 DataType::kComplex128};
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  for (int round = 0; round < 100; ++round) {
    Check({.dtype = kTypes[round % 4]},
          {.size = GetParam(),
           .rank = static_cast<int>(below(GetParam())),
           .count = below(1 + (int64_t{1} << below(12))),
           .is_in_place = below(2) == 0,
           .own_shift = below(20),
           .output_shift = below(20)},
          random() % 1000, static_cast<uint32_t>(1 + below(3)));
  }
}

TEST(FoldKernelBlocks, AreAsManyAsThereAreUnits) {
  const auto blocks_of = [](int64_t count) {
    return cuda::FoldBlocksOf<float>(cuda::FoldLaunchOf({.count = count}, 1));
  };
  EXPECT_EQ(blocks_of(1), 1u);
  EXPECT_EQ(blocks_of(1024), 1u);
  EXPECT_EQ(blocks_of(1025), 2u);
  EXPECT_EQ(blocks_of(int64_t{1} << 50), 1u << 30);
}

}  // namespace
}  // namespace mydist::testing
