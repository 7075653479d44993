#include "base/status.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

TEST(CheckDeathTest, NamesPlaceAndCondition) {
  EXPECT_DEATH(MYDIST_CHECK(1 + 1 == 3),
               "internal error at .*check_test.cc:[0-9]+: 1 \\+ 1 == 3 does not hold");
}

TEST(CheckTest, EvaluatesItsConditionOnce) {
  int count = 0;
  MYDIST_CHECK(++count == 1);
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace mydist
