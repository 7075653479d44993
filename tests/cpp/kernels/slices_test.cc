#include "kernels/element.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

TEST(Slices, EvenSlicesCoverEverythingOnce) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1000}, int64_t{100003},
                              int64_t{1} << 20, (int64_t{1} << 40) + 12345}) {
    for (const int64_t element_bytes : {1, 2, 4, 8, 16}) {
      for (const int parts : {1, 2, 3, 5, 8, 64, 1000}) {
        int64_t next = 0;
        for (int part = 0; part < parts; ++part) {
          const Slice slice = EvenSlice(count, element_bytes, parts, part);
          ASSERT_EQ(slice.offset, next) << count << " over " << parts << ", part " << part;
          ASSERT_GE(slice.count, 0);
          next += slice.count;
        }
        ASSERT_EQ(next, count);
      }
    }
  }
}

TEST(Slices, SmallSlicesDifferByOneElementAtMost) {
  for (int part = 0; part < 5; ++part) {
    EXPECT_EQ(EvenSlice(1003, 4, 5, part).count, part < 3 ? 201 : 200);
  }
}

TEST(Slices, LargeSlicesStartOnCacheLines) {
  const int64_t count = 100003;
  for (int part = 0; part < 7; ++part) {
    const Slice slice = EvenSlice(count, 4, 7, part);
    EXPECT_EQ(slice.offset * 4 % 64, 0);
    EXPECT_NEAR(static_cast<double>(slice.count), static_cast<double>(count) / 7, 16);
  }
}

TEST(Slices, EvenSlicesBeyond32Bits) {
  const int64_t count = (int64_t{3} << 32) + 5;
  EXPECT_EQ(EvenSlice(count, 2, 3, 1), (Slice{(int64_t{1} << 32) + 32, int64_t{1} << 32}));
  const Slice last = EvenSlice(count, 2, 3, 2);
  EXPECT_EQ(last.offset + last.count, count);
}

TEST(Slices, RoundsCoverASliceOnce) {
  const Slice slice{int64_t{1} << 33, (int64_t{1} << 32) + 10};
  const int64_t limit = int64_t{1} << 30;
  const Slice other{0, 3};
  const Slice both[] = {other, slice};
  const int64_t rounds = RoundCount(both, limit);
  ASSERT_EQ(rounds, 5);
  int64_t next = slice.offset;
  for (int64_t round = 0; round < rounds; ++round) {
    const Slice part = RoundOf(slice, limit, round);
    EXPECT_EQ(part.offset, next);
    EXPECT_LE(part.count, limit);
    next += part.count;
  }
  EXPECT_EQ(next, slice.offset + slice.count);
  EXPECT_EQ(RoundOf(other, limit, 0), other);
  EXPECT_EQ(RoundOf(other, limit, 1).count, 0);
  EXPECT_EQ(RoundCount({}, limit), 0);
}

TEST(Slices, FirstRanksGetOneMoreRow) {
  EXPECT_EQ(ScatterRowCounts(7, 3), (std::vector<int64_t>{3, 2, 2}));
  EXPECT_EQ(ScatterRowCounts(2, 4), (std::vector<int64_t>{1, 1, 0, 0}));
  EXPECT_EQ(ScatterRowCounts(0, 2), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(ScatterRowCounts((int64_t{1} << 33) + 1, 2),
            (std::vector<int64_t>{(int64_t{1} << 32) + 1, int64_t{1} << 32}));
}

TEST(Slices, OffsetsBeyond32Bits) {
  const std::vector<int64_t> counts{int64_t{1} << 31, int64_t{1} << 31, 5};
  EXPECT_EQ(OffsetOf(counts, 0), 0);
  EXPECT_EQ(OffsetOf(counts, 2), int64_t{1} << 32);
  EXPECT_EQ(Total(counts), (int64_t{1} << 32) + 5);
}

}  // namespace
}  // namespace mydist
