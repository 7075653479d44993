// The frozen schedule between hosts: who waits for whose word, and what is sent.
#include <gmock/gmock.h>

#include <map>
#include <memory>

#include "controller/frozen/frozen_schedule.h"
#include "controller/messages/wire.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

using Move = FrozenSchedule::Move;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

FrozenBucket BucketOf(const std::string& name, std::vector<int32_t> ranks, ProcessSetId set) {
  FrozenBucket bucket;
  bucket.bucket.process_set = set;
  bucket.ranks = std::move(ranks);
  Request request = MakeRequest(name);
  request.process_set = set;
  bucket.bucket.tensors.push_back(std::make_shared<const Agreement>(Agreement{request, {}}));
  return bucket;
}

// Ranks 0 and 1 share a board, 2 and 3 do, 4 is alone. "a" is of all, "b" of ranks 1, 3 and 4, "c"
// of ranks 0 and 1.
class FrozenHostsTest : public ::testing::Test {
 protected:
  std::unique_ptr<FrozenSchedule> Schedule(int32_t rank) {
    auto schedule = std::make_unique<FrozenSchedule>(rank, std::vector<int32_t>{0, 0, 2, 2, 4},
                                                     FrozenPatience());
    schedule->Freeze(
        1,
        {BucketOf("a", {0, 1, 2, 3, 4}, 0), BucketOf("b", {1, 3, 4}, 1), BucketOf("c", {0, 1}, 2)},
        now_);
    return schedule;
  }
  void Submit(FrozenSchedule& schedule, const std::string& name, ProcessSetId set) {
    Request request = MakeRequest(name);
    request.process_set = set;
    schedule.Submit(request, now_);
  }
  void Say(Voice voice, int32_t rank, uint64_t ready_count, bool is_broken = false) {
    words_[{voice, rank}] = {1, ready_count, is_broken};
  }
  Move Advance(FrozenSchedule& schedule) {
    return schedule.Advance(
        [this](Voice voice, int32_t rank) {
          return words_[{voice, rank}];
        },
        now_);
  }

  TimePoint now_ = TimePoint() + std::chrono::seconds(1000);
  std::map<std::pair<Voice, int32_t>, VoteWord> words_;
};

TEST_F(FrozenHostsTest, ALeaderTellsOthersOnceItsHostIsReady) {
  const auto leader = Schedule(0);
  Submit(*leader, "a", 0);
  ASSERT_EQ(Advance(*leader), Move::kReady);
  EXPECT_THAT(leader->judges(), ElementsAre(0));
  Say(Voice::kHost, 2, 1);
  Say(Voice::kHost, 4, 1);
  EXPECT_EQ(Advance(*leader), Move::kNone);  // Its own host is not ready.
  Say(Voice::kRank, 1, 1);
  ASSERT_EQ(Advance(*leader), Move::kTell);
  EXPECT_EQ(leader->word(Voice::kHost), (VoteWord{1, 1, false}));
  EXPECT_THAT(leader->far(), ElementsAre(2, 4));
  ASSERT_EQ(Advance(*leader), Move::kExecute);
  EXPECT_TRUE(leader->leads());
  EXPECT_EQ(leader->word(Voice::kOutcome), (VoteWord{1, 1, false}));
  EXPECT_THAT(leader->near(), ElementsAre(0, 1));
}

TEST_F(FrozenHostsTest, ALeaderWaitsForEveryOtherHost) {
  const auto leader = Schedule(0);
  Submit(*leader, "a", 0);
  Say(Voice::kRank, 1, 1);
  ASSERT_EQ(Advance(*leader), Move::kReady);
  ASSERT_EQ(Advance(*leader), Move::kTell);
  Say(Voice::kHost, 4, 1);
  EXPECT_EQ(Advance(*leader), Move::kNone);
  EXPECT_EQ(leader->word(Voice::kOutcome), (VoteWord{1, 0, false}));
  // Not what its ranks say, but what their leader says of all of them.
  Say(Voice::kRank, 2, 1);
  EXPECT_EQ(Advance(*leader), Move::kNone);
  Say(Voice::kHost, 2, 1);
  EXPECT_EQ(Advance(*leader), Move::kExecute);
}

TEST_F(FrozenHostsTest, OtherRanksWaitForTheOutcomeOnly) {
  const auto rank = Schedule(3);
  Submit(*rank, "a", 0);
  ASSERT_EQ(Advance(*rank), Move::kReady);
  EXPECT_THAT(rank->judges(), ElementsAre(2));
  Say(Voice::kRank, 2, 1);
  for (const int32_t leader : {0, 2, 4}) Say(Voice::kHost, leader, 1);
  EXPECT_EQ(Advance(*rank), Move::kNone);
  Say(Voice::kOutcome, 2, 1);
  ASSERT_EQ(Advance(*rank), Move::kExecute);
  EXPECT_FALSE(rank->leads());
}

TEST_F(FrozenHostsTest, ABreakOfAnotherHostBreaksThisOne) {
  const auto leader = Schedule(0);
  Submit(*leader, "a", 0);
  Say(Voice::kRank, 1, 1);
  ASSERT_EQ(Advance(*leader), Move::kReady);
  ASSERT_EQ(Advance(*leader), Move::kTell);
  leader->Break();
  EXPECT_EQ(Advance(*leader), Move::kNone);  // READY is not taken back.
  Say(Voice::kHost, 2, 0, true);
  ASSERT_EQ(Advance(*leader), Move::kThaw);
  EXPECT_EQ(leader->word(Voice::kHost), (VoteWord{1, 1, true}));
  EXPECT_EQ(leader->word(Voice::kOutcome), (VoteWord{1, 0, true}));
  EXPECT_THAT(leader->all_near(), ElementsAre(0, 1));
  EXPECT_THAT(leader->all_far(), ElementsAre(2, 4));
}

TEST_F(FrozenHostsTest, ABreakOfARankIsOneOfItsHost) {
  const auto leader = Schedule(0);
  Submit(*leader, "a", 0);
  ASSERT_EQ(Advance(*leader), Move::kReady);
  Say(Voice::kRank, 1, 0, true);
  ASSERT_EQ(Advance(*leader), Move::kThaw);
  EXPECT_EQ(leader->word(Voice::kHost), (VoteWord{1, 0, true}));
}

TEST_F(FrozenHostsTest, EachSetHasLeadersOfItsOwn) {
  const auto rank = Schedule(1);
  Submit(*rank, "a", 0);
  Submit(*rank, "b", 1);
  Submit(*rank, "c", 2);
  Say(Voice::kOutcome, 0, 1);
  ASSERT_EQ(Advance(*rank), Move::kReady);
  ASSERT_EQ(Advance(*rank), Move::kExecute);
  ASSERT_EQ(Advance(*rank), Move::kReady);
  ASSERT_EQ(Advance(*rank), Move::kTell);
  EXPECT_THAT(rank->far(), ElementsAre(3, 4));
  EXPECT_EQ(rank->word(Voice::kHost), (VoteWord{1, 2, false}));
  Say(Voice::kHost, 3, 2);
  Say(Voice::kHost, 4, 2);
  ASSERT_EQ(Advance(*rank), Move::kExecute);
  // A set of one host has no leaders.
  ASSERT_EQ(Advance(*rank), Move::kReady);
  EXPECT_THAT(rank->judges(), ElementsAre(0, 1));
  EXPECT_EQ(Advance(*rank), Move::kNone);
  Say(Voice::kRank, 0, 3);
  EXPECT_EQ(Advance(*rank), Move::kExecute);
  EXPECT_FALSE(rank->leads());
}

TEST_F(FrozenHostsTest, ALeaderThatIsGoneSaysNoBreakWhereOthersMayHaveDecided) {
  const auto leader = Schedule(0);
  Submit(*leader, "a", 0);
  Say(Voice::kRank, 1, 1);
  ASSERT_EQ(Advance(*leader), Move::kReady);
  ASSERT_EQ(Advance(*leader), Move::kTell);
  leader->Abandon();
  EXPECT_FALSE(leader->active());
  EXPECT_EQ(leader->word(Voice::kOutcome), (VoteWord{1, 0, false}));
  EXPECT_EQ(leader->word(Voice::kHost), (VoteWord{1, 1, true}));

  const auto other = Schedule(2);
  Submit(*other, "a", 0);
  ASSERT_EQ(Advance(*other), Move::kReady);
  other->Abandon();
  EXPECT_EQ(other->word(Voice::kOutcome), (VoteWord{1, 0, true}));
}

// ---- whole jobs ----

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

TEST_F(FrozenHostsJobTest, ABucketTakesOneWordFromHostToHost) {
  Freeze();
  std::vector<CoordinatorStats> before;
  for (int rank = 0; rank < 5; ++rank) before.push_back(job_.coordinator(rank).stats());
  const size_t batches = job_.batches(3).size();
  for (int step = 0; step < 20; ++step) Step();
  const uint64_t buckets = job_.batches(3).size() - batches;
  EXPECT_GE(buckets, 20u);
  for (int rank = 0; rank < 5; ++rank) {
    const CoordinatorStats& after = job_.coordinator(rank).stats();
    const CoordinatorStats& then = before[static_cast<size_t>(rank)];
    const uint64_t words = rank == 1 || rank == 3 ? 0 : 2 * buckets;
    EXPECT_EQ(after.votes_sent - then.votes_sent, words) << rank;
    EXPECT_EQ(after.votes_received - then.votes_received, words) << rank;
    EXPECT_EQ(after.messages_sent - then.messages_sent, words) << rank;
    EXPECT_EQ(after.messages_received - then.messages_received, words) << rank;
    EXPECT_EQ(after.frozen_steps - then.frozen_steps, 20u) << rank;
    EXPECT_EQ(job_.Log(rank), job_.Log(0));
  }
}

TEST_F(FrozenHostsJobTest, AMismatchIsAnErrorOnEveryRankAndThenItFreezesAgain) {
  Freeze();
  for (int rank = 0; rank < 5; ++rank) {
    job_.Announce(rank, MakeRequest("a", {rank == 3 ? 5 : 4}));
  }
  job_.RunUntilQuiet();
  for (int rank = 0; rank < 5; ++rank) {
    ASSERT_EQ(job_.Errors(rank).size(), 1u);
    EXPECT_THAT(job_.Errors(rank)[0], HasSubstr("[5]"));
  }
  const uint64_t steps = job_.coordinator(4).stats().frozen_steps;
  for (int step = 0; step < 20; ++step) Step();
  EXPECT_GT(job_.coordinator(4).stats().frozen_steps, steps);
}

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
  const uint64_t received = job_.coordinator(4).stats().votes_received;
  job_.plane(0).lost_peers = {2};
  job_.coordinator(0).Leave(Status::Ok());
  job_.RunUntilQuiet();
  EXPECT_EQ(job_.coordinator(4).stats().votes_received, received + 1);
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
    const uint64_t messages = job->coordinator(follower).stats().messages_sent;
    Announce(*job, "a");
    return job->coordinator(follower).stats().messages_sent == messages ? std::move(job) : nullptr;
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
  EXPECT_THAT(status.message(), HasSubstr("takes back a vote"));
}

TEST_F(StrangeVoteTest, AVoteOfAFreezeThatCannotBeIsAnError) {
  const Status status = Take(EncodeVote({2, 0, false}));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("freeze 2, expected 1 at most"));
}

TEST_F(StrangeVoteTest, AMalformedVoteIsAnError) {
  Bytes message = EncodeVote({1, 7, false});
  message.push_back(0);
  EXPECT_EQ(Take(message).code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace mydist
