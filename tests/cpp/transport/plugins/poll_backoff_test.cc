#include "transport/mpi/poll_backoff.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(PollBackoff, IsEagerFirstThenDoublesToTheLongest) {
  const TimePoint start{};
  PollBackoff backoff(microseconds(50), milliseconds(1));
  backoff.Reset(start);
  EXPECT_EQ(backoff.Next(start), Duration::zero());
  EXPECT_EQ(backoff.Next(start + microseconds(49)), Duration::zero());
  const TimePoint later = start + microseconds(50);
  for (const int expected_us : {20, 40, 80, 160, 320, 640, 1000, 1000}) {
    EXPECT_EQ(backoff.Next(later), microseconds(expected_us));
  }
}

TEST(PollBackoff, ResetMakesItEagerAgain) {
  TimePoint now{};
  PollBackoff backoff(microseconds(50), milliseconds(1));
  backoff.Reset(now);
  now += milliseconds(5);
  EXPECT_EQ(backoff.Next(now), microseconds(20));
  EXPECT_EQ(backoff.Next(now), microseconds(40));
  backoff.Reset(now);
  EXPECT_EQ(backoff.Next(now), Duration::zero());
  EXPECT_EQ(backoff.Next(now + microseconds(50)), microseconds(20));
}

TEST(PollBackoff, NeverPausesLongerThanAllowed) {
  PollBackoff backoff(microseconds(0), microseconds(5));
  backoff.Reset(TimePoint{});
  EXPECT_EQ(backoff.Next(TimePoint{}), microseconds(5));
}

}  // namespace
}  // namespace mydist
