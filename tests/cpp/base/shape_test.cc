#include "base/dtype.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

TEST(ShapeTest, CountsElements) {
  EXPECT_EQ(Shape().ElementCount(), 1);
  EXPECT_EQ(Shape({7}).ElementCount(), 7);
  EXPECT_EQ(Shape({2, 3, 4}).ElementCount(), 24);
  EXPECT_EQ(Shape({2, 0, 4}).ElementCount(), 0);
  EXPECT_EQ(Shape({int64_t{1} << 31, 2}).ElementCount(), int64_t{1} << 32);
}

TEST(ShapeTest, RefusesCountsThatDoNotFit) {
  constexpr int64_t kLarge = int64_t{1} << 31;
  EXPECT_EQ(Shape({kLarge, kLarge}).ElementCount(), int64_t{1} << 62);
  EXPECT_EQ(Shape({kLarge, kLarge, 2}).ElementCount(), std::nullopt);
  EXPECT_EQ(Shape({kLarge + 1, kLarge}).ElementCount(), std::nullopt);
  EXPECT_EQ(Shape({INT64_MAX}).ElementCount(), std::nullopt);
  EXPECT_EQ(Shape({INT64_MAX, INT64_MAX}).ElementCount(), std::nullopt);
  EXPECT_EQ(Shape({-1}).ElementCount(), std::nullopt);
  EXPECT_EQ(Shape({3, -2}).ElementCount(), std::nullopt);
  EXPECT_EQ(Shape({INT64_MIN}).ElementCount(), std::nullopt);
}

// Whether a shape is too large does not depend on where its zero is, nor may its row overflow.
TEST(ShapeTest, AnEmptyShapeIsJudgedTheSameInAnyOrder) {
  EXPECT_EQ(Shape({0, INT64_MAX, INT64_MAX}).ElementCount(), std::nullopt);
  EXPECT_EQ(Shape({INT64_MAX, INT64_MAX, 0}).ElementCount(), std::nullopt);
  EXPECT_EQ(Shape({INT64_MAX, 0, INT64_MAX}).ElementCount(), std::nullopt);
  EXPECT_EQ(Shape({0, int64_t{1} << 62}).ElementCount(), 0);
  EXPECT_EQ(Shape({int64_t{1} << 62, 0}).ElementCount(), 0);
  EXPECT_EQ(Shape({0, int64_t{1} << 62}).RowElementCount(), int64_t{1} << 62);
  EXPECT_EQ(Shape({0, -1}).ElementCount(), std::nullopt);
  EXPECT_EQ(Shape({-1, 0}).ElementCount(), std::nullopt);
}

TEST(ShapeTest, RowsAreAllButTheFirstDimension) {
  EXPECT_EQ(Shape().RowElementCount(), 1);
  EXPECT_EQ(Shape({5}).RowElementCount(), 1);
  EXPECT_EQ(Shape({5, 2, 3}).RowElementCount(), 6);
  EXPECT_EQ(Shape({0, 4}).RowElementCount(), 4);
  EXPECT_TRUE(Shape({5, 2}).SameRowAs(Shape({0, 2})));
  EXPECT_TRUE(Shape({5}).SameRowAs(Shape({9})));
  EXPECT_TRUE(Shape().SameRowAs(Shape()));
  EXPECT_FALSE(Shape({5, 2}).SameRowAs(Shape({5, 3})));
  EXPECT_FALSE(Shape({5, 2}).SameRowAs(Shape({5, 2, 1})));
  EXPECT_FALSE(Shape().SameRowAs(Shape({1})));
}

TEST(ShapeTest, FirstDimensionCanBeReplaced) {
  EXPECT_EQ(Shape({5, 2}).WithFirstDim(8), Shape({8, 2}));
  EXPECT_EQ(Shape().WithFirstDim(3), Shape({3}));
}

TEST(ShapeTest, ComparesAndPrints) {
  EXPECT_EQ(Shape({1, 2}), Shape({1, 2}));
  EXPECT_NE(Shape({1, 2}), Shape({2, 1}));
  EXPECT_NE(Shape(), Shape({1}));
  EXPECT_EQ(Shape().ToString(), "[]");
  EXPECT_EQ(Shape({7}).ToString(), "[7]");
  EXPECT_EQ(Shape({2, 3}).ToString(), "[2, 3]");
  EXPECT_EQ(Shape({2, 3}).rank(), 2);
  EXPECT_EQ(Shape({2, 3}).dim(1), 3);
}

}  // namespace
}  // namespace mydist
