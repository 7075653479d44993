// A frozen schedule at its limits, and against ranks that vote nonsense or die. What it must not
// change: frozen_property_test.
#include <gmock/gmock.h>

#include "conformance/status_checks.h"
#include "controller/messages/response.h"
#include "controller/messages/wire.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// With steps that take as long whether frozen or not, one of which is another one each `interval`
// steps: the share of frozen ones and how often they thawed, once that is the rule.
enum class Otherwise { kMore, kLess };
std::pair<double, uint64_t> Interrupted(int interval, Otherwise otherwise) {
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

// What is over soon after it froze is frozen more and more rarely.
TEST(InterruptedJob, FreezesWhereThatPays) {
  EXPECT_GE(Interrupted(50, Otherwise::kMore).first, 0.7);
  EXPECT_LE(Interrupted(13, Otherwise::kMore).second, 2u);
  EXPECT_LE(Interrupted(50, Otherwise::kLess).second, 2u) << "patience has its price";
  EXPECT_GE(Interrupted(400, Otherwise::kLess).first, 0.9);
}

// Rank 1 hears late of a freeze, of its end and of two turns that rank 0 has given up. It has
// submitted one of them: it missed that one, and the next when it comes to it.
TEST(InterruptedJob, AGroupThatHasMissedATurnMissesNoOther) {
  SimulatedJob job({.size = 2, .freeze_after = 2, .stall_shutdown = std::chrono::seconds(30)});
  std::vector<Request> group = {MakeRequest("a"), MakeRequest("b")};
  for (Request& request : group) request.group = "g";
  for (Request& request : group) request.group_size = 2;
  job.AnnounceAll(MakeRequest("y"));
  job.RunUntilQuiet();
  job.Hold(0, 1);
  job.AnnounceAll(MakeRequest("y"));
  job.RunUntilQuiet();
  for (int turn = 0; turn < 2; ++turn) {
    job.Announce(0, group);
    job.RunUntilQuiet();
    job.now += std::chrono::seconds(30);
    job.RunUntilQuiet();
  }
  ASSERT_EQ(job.Errors(0).size(), 4u);
  ASSERT_EQ(job.coordinator(0).stats().thaws, 1u);
  job.Announce(1, group);
  job.Release();
  while (job.DeliverOne()) {
  }
  job.RunUntilQuiet();
  EXPECT_EQ(job.Errors(1).size(), 2u);
  EXPECT_EQ(job.coordinator(1).Announce(group, job.now).code(), StatusCode::kTimeout);
  job.Announce(1, group);
  job.Announce(0, group);
  job.RunUntilQuiet();
  EXPECT_THAT(job.Log(1), ::testing::Contains("ready b [4]"));
}

// 2^24 freezes and 2^39 buckets take years; these limits are in their place.
TEST(FrozenLimits, BeyondWhatAVoteCanCountItNegotiates) {
  SimulatedJob job({.size = 3, .freeze_after = 3, .vote_limits = {.freezes = 2, .buckets = 7}});
  for (int step = 0; step < 100; ++step) {
    job.AnnounceAll(MakeRequest("a"));
    job.RunUntilQuiet();
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job.coordinator(rank).stats().frozen_steps, 14u) << rank;
    EXPECT_EQ(job.coordinator(rank).stats().thaws, 2u) << rank;
    EXPECT_EQ(job.batches(rank).size(), 100u) << rank;
    EXPECT_EQ(job.Log(rank), job.Log(0));
    EXPECT_THAT(job.Errors(rank), ElementsAre());
  }
}

// It would not vote; and what is left of a timeline must still reach it.
TEST(LeftRoot, FreezesNothingAndGoesOnTakingBlocks) {
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

class FrozenHosts : public ::testing::Test {
 protected:
  void Step() {
    for (const char* name : {"a", "b", "c"}) job_.AnnounceAll(MakeRequest(name));
    job_.RunUntilQuiet();
  }
  // Feeds the coordinator of rank 1 a message of rank 2.
  Status Take(const Bytes& message) {
    job_.plane(1).inbox.push_back({2, message});
    MYDIST_RETURN_IF_ERROR(job_.coordinator(1).Exchange(job_.now));
    return job_.coordinator(1).Negotiate(job_.now).status();
  }

  SimulatedJob job_{{.size = 5, .radix = 4, .freeze_after = 3, .hosts = {0, 0, 1, 1, 2}}};
};

// The word of rank 4 to rank 2 is slower than the news, through rank 0, that everybody has left.
TEST_F(FrozenHosts, WhoDiesInsteadOfVotingIsNotForgotten) {
  for (int step = 0; step < 5; ++step) Step();
  ASSERT_GT(job_.coordinator(2).stats().frozen_steps, 0u);
  job_.Hold(4, 2);
  Step();
  for (int rank = 0; rank < 5; ++rank) job_.Depart(rank, "shutdown");
  job_.RunUntilQuiet();
  job_.now += std::chrono::minutes(1);  // Rank 2 has asked for a thaw.
  job_.RunUntilQuiet();
  ASSERT_EQ(job_.Log(0).end()[-2], "finished");
  ASSERT_EQ(job_.coordinator(2).NextDeadline(), kNever);
  job_.plane(2).loss = Status::PeerLost("rank 4");
  job_.RunUntilQuiet();
  // Reported then, unless the vote comes before.
  EXPECT_NE(job_.coordinator(2).NextDeadline(), kNever);
}

TEST_F(FrozenHosts, VotesThatCannotBeAreErrors) {
  EXPECT_TRUE(Take(EncodeVote({1, 7, false})).ok());
  EXPECT_TRUE(Take(EncodeVote({1, 7, true})).ok());
  const Status back = Take(EncodeVote({1, 8, true}));
  ExpectError(back, StatusCode::kInternal, {"rank 2", "withdraws a vote"});
  EXPECT_THAT(Take(EncodeVote({2, 0, false})).message(), HasSubstr("freeze 2, expected at most 1"));
  Bytes malformed = EncodeVote({1, 7, false});
  malformed.push_back(0);
  EXPECT_EQ(Take(malformed).code(), StatusCode::kInternal);
}

TEST(FrozenSegment, OfWhatDidNotHappenIsAnError) {
  SimulatedJob job({.size = 3});
  SimulatedPlane plane(&job, 1);
  Coordinator coordinator({.rank = 1, .size = 2, .freeze_after = 3}, &plane);
  StreamSegment segment;
  StreamItem& item = segment.items.emplace_back();
  item.kind = StreamKind::kReadyAgreement;
  item.agreement = std::make_shared<const Agreement>(Agreement{MakeRequest("a"), {}});
  ASSERT_TRUE(coordinator.Announce({MakeRequest("a")}, job.now).ok());
  segment.items.emplace_back();
  StreamItem& freeze = segment.items.emplace_back();
  freeze.kind = StreamKind::kFreeze;
  freeze.frozen = {.length = 2, .repeats = 1, .hash = 1};
  segment.items.emplace_back();
  plane.inbox.push_back({0, EncodeSegment(segment)[0]});
  ASSERT_TRUE(coordinator.Exchange(job.now).ok());
  const Status status = coordinator.Negotiate(job.now).status();
  ExpectError(status, StatusCode::kInternal,
              {"rank 0", "froze a step of 2 tensors that did not occur 1 times"});
}

}  // namespace
}  // namespace mydist
