#include "transport/gloo/mesh.h"

#include <gtest/gtest.h>

#include <thread>

namespace mydist {
namespace {

int PolicyOfNewThread() {
  int policy = -1;
  std::thread([&] { policy = sched_getscheduler(0); }).join();
  return policy;
}

TEST(BatchScheduling, IsOfThreadsStartedMeanwhile) {
  const int own = sched_getscheduler(0);
  if (own != SCHED_OTHER) GTEST_SKIP() << "the tests run with policy " << own;
  {
    const BatchScheduling batch;
    EXPECT_EQ(PolicyOfNewThread(), SCHED_BATCH);
  }
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  EXPECT_EQ(PolicyOfNewThread(), SCHED_OTHER);
}

TEST(BatchScheduling, LeavesAPolicyThatWasGiven) {
  std::thread([] {
    const sched_param parameters{};
    ASSERT_EQ(sched_setscheduler(0, SCHED_IDLE, &parameters), 0);
    {
      const BatchScheduling batch;
      EXPECT_EQ(PolicyOfNewThread(), SCHED_IDLE);
    }
    EXPECT_EQ(sched_getscheduler(0), SCHED_IDLE);
  }).join();
}

}  // namespace
}  // namespace mydist
