// A frozen schedule seen from outside: what it must not change, when it pays, and its limits.
#include <gmock/gmock.h>

#include "controller/messages/response.h"
#include "controller/messages/wire.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FrozenJobTest : public ::testing::Test {
 protected:
  FrozenJobTest() : job_({.size = 3, .freeze_after = 3, .stall_warning = seconds(10)}) {}

  void Step() {
    for (const char* name : {"a", "b", "c"}) job_.AnnounceAll(MakeRequest(name));
    job_.RunUntilQuiet();
  }
  void Freeze() {
    for (int step = 0; step < 5; ++step) Step();
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_GT(job_.coordinator(rank).stats().frozen_steps, 0u) << rank;
    }
  }
  void Pass(Duration duration) {
    job_.now += duration;
    job_.RunUntilQuiet();
  }
  uint64_t Thaws() { return job_.coordinator(0).stats().thaws; }

  SimulatedJob job_;
};

TEST_F(FrozenJobTest, ARankThatDoesNotComeIsReportedInTime) {
  Freeze();
  for (const int rank : {0, 2}) job_.Announce(rank, MakeRequest("a"));
  job_.RunUntilQuiet();
  Pass(seconds(1));
  EXPECT_EQ(Thaws(), 1u);
  Pass(milliseconds(9900));
  EXPECT_THAT(job_.Stalls(1), ElementsAre());
  Pass(milliseconds(200));
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(job_.Stalls(rank).size(), 1u);
    EXPECT_THAT(job_.Stalls(rank)[0], HasSubstr("'a'"));
    EXPECT_THAT(job_.Stalls(rank)[0], HasSubstr("rank 1"));
  }
  job_.Announce(1, MakeRequest("a"));
  job_.RunUntilQuiet();
  EXPECT_EQ(job_.Log(1), job_.Log(0));
}

TEST_F(FrozenJobTest, ANameInFlightIsRefusedAtOnce) {
  Freeze();
  job_.Announce(1, MakeRequest("a"));
  const Status status = job_.coordinator(1).Announce({MakeRequest("a")}, job_.now);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'a' is still in flight"));
  EXPECT_EQ(job_.coordinator(1).Announce({MakeRequest("x"), MakeRequest("x")}, job_.now).code(),
            StatusCode::kInvalidArgument);
}

// With steps that take as long whether frozen or not, one of which is another one each `interval`
// steps: the share of frozen ones and how often they thawed, once that is the rule.
enum class Otherwise { kMore, kLess };
std::pair<double, uint64_t> Interrupted(int interval, Otherwise otherwise = Otherwise::kMore) {
  SimulatedJob job({.size = 3, .freeze_after = 10});
  const auto stats = [&] { return job.coordinator(0).stats(); };
  const auto pass = [&](const char* name) {
    job.AnnounceAll(MakeRequest(name));
    job.now += milliseconds(5);
    job.RunUntilQuiet();
  };
  constexpr int kSteps = 2000;
  CoordinatorStats before;
  for (int step = 0; step < 2 * kSteps; ++step) {
    if (step == kSteps) before = stats();
    const bool is_other = step % interval == interval - 1;
    pass("a");
    if (is_other && otherwise == Otherwise::kMore) pass("metric");
    if (is_other && otherwise == Otherwise::kLess) {
      pass("c");  // Behind b, for which a rank that waits has patience.
      for (int rank = 0; rank < 3; ++rank) job.coordinator(rank).SetWaiting(true, job.now);
      job.now += milliseconds(6);
      job.RunUntilQuiet();
      for (int rank = 0; rank < 3; ++rank) job.coordinator(rank).SetWaiting(false, job.now);
    } else {
      pass("b");
      pass("c");
    }
  }
  return {static_cast<double>(stats().frozen_steps - before.frozen_steps) / kSteps,
          stats().thaws - before.thaws};
}

TEST(InterruptedJobTest, SomethingElseNowAndThenLeavesMostStepsFrozen) {
  EXPECT_GE(Interrupted(50).first, 0.7);
  EXPECT_GE(Interrupted(200).first, 0.9);
}

// What is over soon after it froze is frozen more and more rarely.
TEST(InterruptedJobTest, SomethingElseAllTheTimeIsHardlyEverFrozen) {
  EXPECT_LE(Interrupted(13).second, 2u);
}

TEST(InterruptedJobTest, WhatCostsPatienceHasToLastLonger) {
  EXPECT_LE(Interrupted(50, Otherwise::kLess).second, 2u);
  EXPECT_GE(Interrupted(400, Otherwise::kLess).first, 0.9);
}

// 2^24 freezes and 2^39 buckets take years; these limits are in their place.
class FrozenLimitsTest : public ::testing::Test {
 protected:
  SimulatedJob job_{{.size = 3, .freeze_after = 3, .vote_limits = {.freezes = 2, .buckets = 7}}};
};

TEST_F(FrozenLimitsTest, BeyondWhatAVoteCanCountItNegotiates) {
  for (int step = 0; step < 100; ++step) {
    job_.AnnounceAll(MakeRequest("a"));
    job_.RunUntilQuiet();
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job_.coordinator(rank).stats().frozen_steps, 14u) << rank;
    EXPECT_EQ(job_.coordinator(rank).stats().thaws, 2u) << rank;
    EXPECT_EQ(job_.batches(rank).size(), 100u) << rank;
    EXPECT_EQ(job_.Log(rank), job_.Log(0));
    EXPECT_THAT(job_.Errors(rank), ElementsAre());
  }
}

// It would not vote; and what is left of a timeline must still reach it.
TEST(LeftRootTest, FreezesNothingAndGoesOnTakingBlocks) {
  for (int steps = 0; steps < 8; ++steps) {
    SimulatedJob job({.size = 3, .freeze_after = 3});
    const auto announce = [&] {
      for (const char* name : {"a", "b"}) job.AnnounceAll(MakeRequest(name));
    };
    for (int step = 0; step < steps; ++step) {
      announce();
      job.RunUntilQuiet();
    }
    announce();
    job.Leave(0, Status::PeerLost("the connection to another rank"));
    ASSERT_TRUE(job.coordinator(2).SendTimeline({1, 2}).ok());
    job.RunUntilQuiet();  // The others learn that they have lost it, nothing worse.
    EXPECT_EQ(job.coordinator(0).TakeTimeline().size(), 1U) << "after " << steps << " steps";
  }
}

TEST_F(FrozenJobTest, AFreezeOfWhatDidNotHappenIsAnError) {
  SimulatedPlane plane(&job_, 1);
  Coordinator coordinator({.rank = 1, .size = 2, .freeze_after = 3}, &plane);
  StreamSegment segment;
  StreamItem& item = segment.items.emplace_back();
  item.kind = StreamKind::kReadyAgreement;
  item.agreement = std::make_shared<const Agreement>(Agreement{MakeRequest("a"), {}});
  ASSERT_TRUE(coordinator.Announce({MakeRequest("a")}, job_.now).ok());
  segment.items.emplace_back();
  StreamItem& freeze = segment.items.emplace_back();
  freeze.kind = StreamKind::kFreeze;
  freeze.frozen = {.length = 2, .repeats = 1, .hash = 1};
  segment.items.emplace_back();
  plane.inbox.push_back({0, EncodeSegment(segment)[0]});
  ASSERT_TRUE(coordinator.Exchange(job_.now).ok());
  const Status status = coordinator.Negotiate(job_.now).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("rank 0"));
  EXPECT_THAT(status.message(), HasSubstr("froze a step of 2 tensors that did not occur 1 times"));
}

}  // namespace
}  // namespace mydist
