// The frozen schedule between hosts: words that come late, never, or make no sense.
#include <gmock/gmock.h>

#include <memory>

#include "controller/messages/wire.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;

class FrozenHostsJobTest : public ::testing::Test {
 protected:
  FrozenHostsJobTest()
      : job_({.size = 5, .radix = 4, .freeze_after = 3, .hosts = {0, 0, 1, 1, 2}}) {}

  void Step() {
    for (const char* name : {"a", "b", "c"}) job_.AnnounceAll(MakeRequest(name));
    job_.RunUntilQuiet();
  }
  void Freeze() {
    for (int step = 0; step < 5; ++step) Step();
    for (int rank = 0; rank < 5; ++rank) {
      ASSERT_GT(job_.coordinator(rank).stats().frozen_steps, 0u) << rank;
    }
  }

  SimulatedJob job_;
};

// The word of rank 4 to rank 2 is slower than the news, through rank 0, that everybody has left.
class SlowVoteTest : public FrozenHostsJobTest {
 protected:
  void LeaveWithAnUndecidedVote() {
    Freeze();
    job_.Hold(4, 2);
    Step();
    for (int rank = 0; rank < 5; ++rank) job_.Depart(rank, "shutdown");
    job_.RunUntilQuiet();
    job_.now += std::chrono::minutes(1);  // Rank 2 has asked for a thaw.
    job_.RunUntilQuiet();
    ASSERT_EQ(Last(0), "finished");
    ASSERT_NE(Last(2), "finished");
    ASSERT_EQ(job_.coordinator(2).NextDeadline(), kNever);
  }
  std::string Last(int rank) {
    const std::vector<std::string> log = job_.Log(rank);
    return log[log.size() - 2];
  }
};

TEST_F(SlowVoteTest, FinishesWhenTheVoteHasCome) {
  LeaveWithAnUndecidedVote();
  job_.plane(2).loss = Status::PeerLost("rank 1");  // Closed, having finished.
  job_.RunUntilQuiet();
  job_.Release();
  job_.RunUntilQuiet();
  EXPECT_EQ(Last(2), "finished");
  EXPECT_EQ(Last(3), "finished");
  // Nothing is held back any more.
  EXPECT_EQ(job_.coordinator(2).NextDeadline(), kNever);
}

TEST_F(SlowVoteTest, WhoDiesInsteadOfVotingIsNotForgotten) {
  LeaveWithAnUndecidedVote();
  job_.plane(2).loss = Status::PeerLost("rank 4");
  job_.RunUntilQuiet();
  // Reported then, unless the vote comes before.
  EXPECT_NE(job_.coordinator(2).NextDeadline(), kNever);
}

TEST_F(FrozenHostsJobTest, ALostLeaderDoesNotKeepTheWordFromTheOthers) {
  Freeze();
  const int64_t received = job_.coordinator(4).stats().host_votes_received;
  job_.plane(0).lost_peers = {2};
  job_.coordinator(0).Leave(Status::Ok());
  job_.RunUntilQuiet();
  EXPECT_EQ(job_.coordinator(4).stats().host_votes_received, received + 1);
}

// A rank that has failed before it has heard of a freeze, which the others are in.
class NeverFrozen : public ::testing::TestWithParam<int> {
 protected:
  int failed() const { return GetParam(); }
  void Announce(SimulatedJob& job, const std::string& name) {
    for (int rank = 0; rank < job.size(); ++rank) {
      if (rank != failed()) job.Announce(rank, MakeRequest(name));
    }
    job.RunUntilQuiet();
  }
  // A job that freezes in its last step, of which one rank does not hear; null when it does not.
  // What is announced in a freeze takes no message of a rank that leads nobody.
  std::unique_ptr<SimulatedJob> FrozenAfter(int steps) {
    auto job = std::make_unique<SimulatedJob>(
        SimulatedJob::Options{.size = 5, .radix = 4, .freeze_after = 3, .hosts = {0, 0, 1, 1, 2}});
    for (int step = 0; step < steps; ++step) {
      if (step == steps - 1) job->Hold(failed() == 3 ? 2 : 0, failed());  // From its parent.
      job->AnnounceAll(MakeRequest("a"));
      job->RunUntilQuiet();
    }
    const int follower = failed() == 1 ? 3 : 1;
    const int64_t messages = job->coordinator(follower).stats().control_messages_sent;
    Announce(*job, "a");
    return job->coordinator(follower).stats().control_messages_sent == messages ? std::move(job)
                                                                                : nullptr;
  }
};
INSTANTIATE_TEST_SUITE_P(Rank, NeverFrozen, ::testing::Values(1, 3, 4));

TEST_P(NeverFrozen, KeepsNobodyWaitingForItsVote) {
  std::unique_ptr<SimulatedJob> job;
  for (int steps = 1; job == nullptr && steps < 10; ++steps) job = FrozenAfter(steps);
  ASSERT_NE(job, nullptr);
  const std::vector<std::string> before = job->Log(0);
  ASSERT_EQ(job->coordinator(0).stats().thaws, 0u);
  job->Depart(failed(), "broken");
  ASSERT_TRUE(job->Step(failed()).ok());
  job->Leave(failed(), Status::Internal("broken"));
  job->RunUntilQuiet();
  const std::vector<std::string> after = job->Log(0);
  ASSERT_EQ(after.size(), before.size() + 2) << "nothing is reduced without it";
  EXPECT_THAT(after[before.size()], HasSubstr("departed " + std::to_string(failed())));
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(job->coordinator(rank).stats().thaws, rank == failed() ? 0u : 1u) << rank;
  }
  // What comes too late for it does not make it vote.
  job->Release();
  while (job->DeliverOne()) {
  }
  Status last;
  for (int cycle = 0; cycle < 5 && last.ok(); ++cycle) last = job->Step(failed());
  EXPECT_EQ(last.code(), StatusCode::kAborted);
}

// Feeds the coordinator of rank 1 a message of rank 2.
class StrangeVoteTest : public FrozenHostsJobTest {
 protected:
  Status Take(const Bytes& message) {
    job_.plane(1).inbox.push_back({2, message});
    MYDIST_RETURN_IF_ERROR(job_.coordinator(1).Exchange(job_.now));
    return job_.coordinator(1).Negotiate(job_.now).status();
  }
};

TEST_F(StrangeVoteTest, AVoteTakenBackIsAnError) {
  EXPECT_TRUE(Take(EncodeVote({1, 7, false})).ok());
  EXPECT_TRUE(Take(EncodeVote({1, 7, true})).ok());
  const Status status = Take(EncodeVote({1, 8, true}));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("rank 2"));
  EXPECT_THAT(status.message(), HasSubstr("withdraws a vote"));
}

TEST_F(StrangeVoteTest, AVoteOfAFreezeThatCannotBeIsAnError) {
  const Status status = Take(EncodeVote({2, 0, false}));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("freeze 2, expected at most 1"));
}

TEST_F(StrangeVoteTest, AMalformedVoteIsAnError) {
  Bytes message = EncodeVote({1, 7, false});
  message.push_back(0);
  EXPECT_EQ(Take(message).code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace mydist
