// Ranks that are out of data: what needs one of them is refused. That the others go on without
// them, in any order of events: mixed_program_test.
#include <gmock/gmock.h>

#include "controller/simulated_job.h"

namespace mydist {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(JoinTest, WhatNeedsARankThatHasJoinedIsAnErrorNamingIt) {
  SimulatedJob job({.size = 3, .names_hosts = true});
  job.Join(2);
  job.RunUntilQuiet();
  Request broadcast = MakeRequest("b");
  broadcast.op = OpKind::kBroadcast;
  broadcast.root_rank = 2;
  Request scaled = MakeRequest("p");
  scaled.reduce_op = ReduceOp::kProduct;
  scaled.prescale = 2;
  Request add = MakeRequest("a", {0});
  add.op = OpKind::kAddProcessSet;
  add.ranks = {0, 1};
  for (const Request& request : {broadcast, scaled, add}) {
    job.Announce(0, request);
    job.Announce(1, request);
  }
  Request send = MakeRequest("s");
  send.op = OpKind::kSendReceive;
  send.ranks = {0, 2};
  job.Announce(0, send);
  job.RunUntilQuiet();
  EXPECT_THAT(job.Errors(1),
              ElementsAre(HasSubstr("broadcast 'b' needs rank 2 (host h2), its root"),
                          HasSubstr("allreduce 'p' is a Product with a prescale_factor"),
                          HasSubstr("add_process_set 'a' needs rank 2 (host h2)")));
  EXPECT_EQ(job.Errors(0).size(), 4u);
  EXPECT_THAT(job.Errors(0), ::testing::Contains(HasSubstr("send/recv 's' needs rank 2")));
  // From another root it works, and the one that has joined takes part.
  broadcast.root_rank = 0;
  job.Announce(0, broadcast);
  job.Announce(1, broadcast);
  job.RunUntilQuiet();
  EXPECT_THAT(job.Log(2), ElementsAre("ready b [4]", "|"));
}

TEST(JoinTest, IsNotOverWhereARankHasDepartedMeanwhile) {
  SimulatedJob job({.size = 3});
  job.Join(0);
  job.Join(1);
  job.RunUntilQuiet();
  job.Depart(1, "it left");
  job.RunUntilQuiet();
  job.Join(2);
  job.RunUntilQuiet();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(job.Log(rank), ::testing::Not(Contains(HasSubstr("joined")))) << rank;
  }
}

TEST(JoinTest, SubmittingOrJoiningAgainMeanwhileIsRefused) {
  SimulatedJob job({.size = 2});
  job.Announce(1, MakeRequest("x"));
  job.Join(1);
  EXPECT_THAT(job.coordinator(1).Announce({MakeRequest("y")}, job.now).ToString(),
              HasSubstr("tensor 'y' was submitted after join()"));
  EXPECT_THAT(job.coordinator(1).Join().ToString(), HasSubstr("already in progress"));
  job.RunUntilQuiet();
  EXPECT_TRUE(job.Log(0).empty());  // What it has in flight comes first.
  job.Announce(0, MakeRequest("x"));
  job.Join(0);
  job.RunUntilQuiet();
  EXPECT_EQ(job.Log(1).front(), "ready x [4]");
  EXPECT_THAT(job.Log(1)[2], HasSubstr("all joined, last "));
  EXPECT_EQ(job.Log(0), job.Log(1));
  job.Announce(1, MakeRequest("y"));  // Back.
}

TEST(JoinTest, AStallDoesNotNameRanksThatHaveJoined) {
  SimulatedJob job({.size = 4, .radix = 1, .stall_warning = std::chrono::seconds(10)});
  job.Join(3);
  job.Announce(0, MakeRequest("x"));
  job.Announce(2, MakeRequest("x"));
  job.RunUntilQuiet();
  for (const int seconds : {6, 5}) {  // In between, inner vertices report.
    job.now += std::chrono::seconds(seconds);
    job.RunUntilQuiet();
  }
  ASSERT_EQ(job.Stalls(0).size(), 1u);
  EXPECT_THAT(job.Stalls(0)[0], HasSubstr("waits for rank 1"));
  EXPECT_THAT(job.Stalls(0)[0], ::testing::Not(HasSubstr("3")));
}

}  // namespace
}  // namespace mydist
