// A rank whose engine stops with an error while its process lives on: nobody waits for it, what it
// had decided stands, and who leaves in order is not taken for it.
#include "controller/membership.h"

#include <gmock/gmock.h>

#include "controller/simulated_job.h"
#include "world/departure.h"

namespace mydist {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(Farewells, OnlyThoseOfWhomThisRankNeedsAreItsEnd) {
  Farewells farewells(2, 5, {"h0", "h0", "h1", "h1", "h2"});
  farewells.Take(4, {.is_told = true, .why = "the disk is full"});
  EXPECT_TRUE(farewells.HasLeft(4));
  EXPECT_FALSE(farewells.HasLeft(2));
  EXPECT_EQ(farewells.LossOf(4).code(), StatusCode::kPeerLost);
  EXPECT_EQ(farewells.LossOf(4).message(), "rank 4 (host h2) has left the job: the disk is full");
  EXPECT_TRUE(farewells.loss().ok()) << "the stream will tell";
  constexpr const char* kFirst = "rank 2 (host h1) has left the job: the heap is full";
  farewells.Take(2, {.is_told = true, .why = "the heap is full"});
  EXPECT_EQ(farewells.loss().message(), kFirst) << "the stream came from it";
  farewells.Take(3, {.is_told = false, .why = "a cable is cut"});
  EXPECT_EQ(farewells.loss().message(), kFirst) << "the first one counts";
}

TEST(Farewells, AParentIsTheEndWhetherTheStreamTellsOrNot) {
  for (const bool is_told : {false, true}) {
    Farewells farewells(0, 2, {});
    EXPECT_FALSE(farewells.is_loss_told());
    farewells.Take(0, {.is_told = is_told, .why = "a disk"});
    EXPECT_FALSE(farewells.loss().ok());
    EXPECT_EQ(farewells.is_loss_told(), is_told);
  }
}

TEST(Farewells, OneThatTheStreamDoesNotTellOfIsTheEndOfAll) {
  Farewells farewells(-1, 3, {});
  farewells.Take(2, {.is_told = false, .why = "a cable is cut"});
  EXPECT_EQ(farewells.loss().message(), "rank 2 has left the job: a cable is cut");
}

// Ranks 0 and 1 are on a host, 2 and 3 on another, 4 alone. Rank 2 leads its host and has the
// stream from rank 0; rank 3 has it from rank 2.
class FarewellTest : public ::testing::Test {
 protected:
  void Announce(const std::vector<int>& ranks) {
    for (const int rank : ranks) job_.Announce(rank, MakeRequest("a"));
    job_.RunUntilQuiet();
  }
  void Freeze() {
    for (int step = 0; step < 8; ++step) Announce({0, 1, 2, 3, 4});
    ASSERT_GT(job_.coordinator(3).stats().frozen_steps, 0u);
    ASSERT_EQ(job_.coordinator(3).stats().thaws, 0u);
  }
  void ExpectTold(int rank) {
    EXPECT_TRUE(job_.outcome(rank).ok()) << rank << ": " << job_.outcome(rank).ToString();
    EXPECT_THAT(job_.Log(rank), Contains(AllOf(HasSubstr("departed 2"), HasSubstr("a disk"))))
        << rank;
  }
  void ExpectLost(int rank, const std::string& why) {
    EXPECT_EQ(job_.outcome(rank).code(), StatusCode::kPeerLost) << rank;
    EXPECT_EQ(job_.outcome(rank).message(), "rank 2 (host h1) has left the job: " + why) << rank;
  }

  SimulatedJob job_{{.size = 5, .radix = 4, .freeze_after = 3, .hosts = {0, 0, 1, 1, 2}}};
  const Status failure_ = Status::Internal("a disk");
};

TEST_F(FarewellTest, ALeaderThatFailsBeforeTheOutcomeKeepsNobodyWaiting) {
  Freeze();
  const size_t batches = job_.batches(3).size();
  const uint64_t votes = job_.coordinator(4).stats().votes_received;
  Announce({0, 1, 2, 3});
  ASSERT_EQ(job_.coordinator(4).stats().votes_received, votes + 2) << "READY is told";
  job_.Fail(2, failure_);
  job_.RunUntilQuiet();
  ExpectLost(3, "a disk");
  EXPECT_EQ(job_.batches(3).size(), batches);
  for (const int rank : {0, 1, 4}) ExpectTold(rank);
}

TEST_F(FarewellTest, ALeaderThatHasLostAnotherRankSaysSoToAll) {
  Freeze();
  Announce({0, 1, 2, 3});
  job_.Fail(2, Status::PeerLost("a cable"));
  job_.RunUntilQuiet();
  for (const int rank : {0, 1, 3, 4}) ExpectLost(rank, "a cable");
}

// The bucket is decided and executed by others: also by who only looks when the leader is gone.
TEST_F(FarewellTest, AnOutcomeThatALeaderHadShownStands) {
  Freeze();
  const size_t batches = job_.batches(2).size();
  for (int rank = 0; rank < 5; ++rank) job_.Announce(rank, MakeRequest("a"));
  ASSERT_TRUE(job_.Step(3).ok());
  while (job_.batches(2).size() == batches) {
    while (job_.DeliverOne()) {
    }
    for (const int rank : {0, 1, 2, 4}) ASSERT_TRUE(job_.Step(rank).ok());
  }
  ASSERT_EQ(job_.batches(3).size(), batches);
  job_.Fail(2, failure_);
  job_.RunUntilQuiet();
  EXPECT_EQ(job_.batches(3).size(), batches + 1);
  ExpectLost(3, "a disk");
  for (const int rank : {0, 1, 4}) ExpectTold(rank);
}

// After some number of steps there is a freeze, of which ranks 2 and 3 do not hear.
class FarewellAfterSteps : public FarewellTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Steps, FarewellAfterSteps, ::testing::Range(1, 10));

TEST_P(FarewellAfterSteps, AChildOfOneThatFailsBeforeItPassesTheNewsOnIsNotKeptWaiting) {
  for (int step = 1; step < GetParam(); ++step) Announce({0, 1, 2, 3, 4});
  job_.Hold(0, 2);
  Announce({0, 1, 2, 3, 4});
  Announce({0, 1, 4});
  job_.Fail(2, failure_);
  job_.RunUntilQuiet();
  ExpectLost(3, "a disk");
  for (const int rank : {0, 1, 4}) ExpectTold(rank);
}

// What it had passed on comes before the news that it is gone.
TEST_F(FarewellTest, WhatAParentHadPassedOnIsExecuted) {
  job_.Hold(2, 3);
  Announce({0, 1, 2, 3, 4});
  ASSERT_EQ(job_.batches(2).size(), 1u);
  ASSERT_EQ(job_.batches(3).size(), 0u);
  job_.Fail(2, failure_);
  job_.Release();
  job_.RunUntilQuiet();
  EXPECT_EQ(job_.batches(3).size(), 1u);
  ExpectLost(3, "a disk");
}

// Nothing is waited for any more: neither is it news that the root is gone, before a rank waits for
// all others to leave.
TEST_F(FarewellTest, WhoKnowsOfADepartureStopsWhenItLeavesItself) {
  Announce({0, 1, 2, 3, 4});
  job_.Fail(0, failure_);
  job_.RunUntilQuiet();
  for (int rank = 1; rank < 5; ++rank) {
    EXPECT_TRUE(job_.outcome(rank).ok()) << rank;
    EXPECT_THAT(job_.Log(rank), Contains(HasSubstr("departed 0"))) << rank;
    EXPECT_EQ(job_.coordinator(rank).NextDeadline(), kNever) << rank;
  }
  job_.Depart(4, "shutdown");
  job_.RunUntilQuiet();
  EXPECT_EQ(job_.outcome(4).code(), StatusCode::kPeerLost);
  EXPECT_THAT(job_.outcome(4).message(), HasSubstr("rank 0"));
}

// Each of three has the stream from the rank before it, so the failure of rank 0 ends rank 1, and
// that of rank 1 rank 2, which has not heard from rank 0.
void FailOneAfterAnother(SimulatedJob* job, const std::string& why) {
  for (int rank = 0; rank < 3; ++rank) job->Announce(rank, MakeRequest("a"));
  job->RunUntilQuiet();
  job->Hold(0, 2);
  job->Fail(0, Status::PeerLost(why));
  job->RunUntilQuiet();
}

TEST(FarewellChain, TheLastOneNamesTheFirst) {
  SimulatedJob job({.size = 3, .radix = 1, .names_hosts = true});
  FailOneAfterAnother(&job, "a cable");
  for (const int rank : {1, 2}) {
    EXPECT_EQ(job.outcome(rank).code(), StatusCode::kPeerLost) << rank;
    EXPECT_EQ(job.outcome(rank).message(), "rank 0 (host h0) has left the job: a cable") << rank;
  }
}

// Cut once by rank 0 and, with the name of that rank before them, again by rank 1.
TEST(FarewellChain, WordsThatAreTooLongStillNameTheFirst) {
  SimulatedJob job({.size = 3, .radix = 1, .names_hosts = true});
  FailOneAfterAnother(&job, "a cable" + std::string(2 * kMaxFarewellBytes, '!'));
  for (const int rank : {1, 2}) {
    EXPECT_THAT(job.outcome(rank).message(),
                MatchesRegex("rank 0 \\(host h0\\) has left the job: a cable!+"));
  }
  EXPECT_EQ(job.outcome(2).message().size(), kMaxFarewellBytes - 2) << "less rank and newline";
}

// Rank 2 follows rank 1, and the root hears of rank 2 before it hears of rank 1.
TEST(FarewellChain, TheStreamNamesTheFirstAlsoWhenTheRootHearsOfAnotherBefore) {
  SimulatedJob job({.size = 3, .radix = 1});
  for (int rank = 0; rank < 3; ++rank) job.Announce(rank, MakeRequest("a"));
  job.RunUntilQuiet();
  job.Hold(1, 0);
  job.Fail(1, Status::Internal("a disk"));
  job.RunUntilQuiet();
  EXPECT_EQ(job.outcome(2).message(), "rank 1 has left the job: a disk");
  EXPECT_THAT(job.Log(0), Contains("departed 2: ABORTED: rank 1 has left the job: a disk"));
  job.Release();
  job.RunUntilQuiet();
  EXPECT_TRUE(job.outcome(0).ok()) << job.outcome(0).ToString();
}

TEST_F(FarewellTest, WhoLeavesInOrderSaysNone) {
  Freeze();
  for (int rank = 0; rank < 5; ++rank) job_.Depart(rank, "shutdown");
  job_.RunUntilQuiet();
  const uint64_t messages = job_.MessagesSent();
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_THAT(job_.Log(rank), Contains("finished")) << rank;
    job_.coordinator(rank).Leave(Status::Ok());
  }
  EXPECT_EQ(job_.MessagesSent(), messages);
}

}  // namespace
}  // namespace mydist
