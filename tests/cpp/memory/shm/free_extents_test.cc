// Which parts of a stretch of memory are free.
#include "memory/shm/arena_heap.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace mydist::shm {
namespace {

TEST(FreeExtents, FirstFitIsTakenAligned) {
  FreeExtents free(1000);
  EXPECT_EQ(free.Take(100, 1), 0);
  EXPECT_EQ(free.Take(100, 128), 128);
  EXPECT_EQ(free.Take(28, 1), 100) << "what the alignment left";
  EXPECT_EQ(free.Take(800, 1), std::nullopt);
  EXPECT_EQ(free.Take(772, 1), 228);
  EXPECT_EQ(free.Take(1, 1), std::nullopt);
}

TEST(FreeExtents, NothingIsTakenTwiceOrLost) {
  constexpr int64_t kBytes = 1 << 16;
  FreeExtents free(kBytes);
  std::vector<Extent> taken;
  std::vector<int> owners(kBytes);
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    const auto draw = [&](int64_t below) { return static_cast<int64_t>(random()) % below; };
    if (taken.empty() || draw(2) == 0) {
      const int64_t bytes = 1 + draw(3000);
      const auto begin = free.Take(bytes, int64_t{1} << draw(8));
      if (!begin) continue;
      taken.push_back({*begin, *begin + bytes});
      for (int64_t i = *begin; i < *begin + bytes; ++i)
        ASSERT_EQ(owners[static_cast<size_t>(i)]++, 0);
    } else {
      std::swap(taken[static_cast<size_t>(draw(static_cast<int64_t>(taken.size())))], taken.back());
      const Extent extent = taken.back();
      taken.pop_back();
      for (int64_t i = extent.begin; i < extent.end; ++i) --owners[static_cast<size_t>(i)];
      const Extent around = free.Give(extent);
      EXPECT_LE(around.begin, extent.begin);
      EXPECT_GE(around.end, extent.end);
    }
  }
  for (const Extent& extent : taken) free.Give(extent);
  EXPECT_EQ(free.Take(kBytes, 1), 0);
}

}  // namespace
}  // namespace mydist::shm
