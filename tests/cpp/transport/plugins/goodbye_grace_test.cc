#include "transport/mpi/poll_backoff.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

using std::chrono::milliseconds;

TEST(GoodbyeGrace, NobodyIsGivenUpWhoHasNotLeft) {
  const TimePoint begin = Now();
  GoodbyeGrace grace(milliseconds(500));
  EXPECT_FALSE(grace.IsOver(-1, begin));
  EXPECT_FALSE(grace.IsOver(-1, begin + milliseconds(5000)));
}

TEST(GoodbyeGrace, WhatOneSentBeforeItLeftHasTimeToArrive) {
  const TimePoint begin = Now();
  GoodbyeGrace grace(milliseconds(500));
  EXPECT_FALSE(grace.IsOver(3, begin));
  EXPECT_FALSE(grace.IsOver(3, begin + milliseconds(499)));
  EXPECT_TRUE(grace.IsOver(3, begin + milliseconds(500)));
}

// What rank 3 sent has come in the last moment; then rank 1 leaves, which has as much time.
TEST(GoodbyeGrace, TheTimeOfOneIsNotThatOfAnother) {
  const TimePoint begin = Now();
  GoodbyeGrace grace(milliseconds(500));
  EXPECT_FALSE(grace.IsOver(3, begin));
  EXPECT_FALSE(grace.IsOver(1, begin + milliseconds(499)));
  EXPECT_FALSE(grace.IsOver(1, begin + milliseconds(998)));
  EXPECT_TRUE(grace.IsOver(1, begin + milliseconds(999)));
}

}  // namespace
}  // namespace mydist
