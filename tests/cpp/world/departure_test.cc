// In a chain of failures everybody names the rank that left first.
#include "world/departure.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace mydist {
namespace {

TEST(DepartureTest, ARankThatFailsByItselfIsNamedWithItsWords) {
  const std::string words = FarewellWords(Status::Internal("the disk is full").WithContext("save"));
  const Status loss = PeerHasLeft(2, "rank 2 (host h)", words);
  EXPECT_EQ(loss.code(), StatusCode::kPeerLost);
  EXPECT_EQ(loss.message(), "rank 2 (host h) has left the job: save: the disk is full");
}

TEST(DepartureTest, OneThatFollowsAnotherIsNotNamed) {
  Status loss =
      PeerHasLeft(2, "rank 2 (host h)", FarewellWords(Status::Internal("the disk is full")));
  for (const char* messenger : {"rank 1 (host h)", "rank 0", "rank 5"}) {
    loss = PeerHasLeft(9, messenger, FarewellWords(loss.WithContext("allreduce 'x'")));
    EXPECT_EQ(loss.code(), StatusCode::kPeerLost);
    EXPECT_EQ(loss.message(), "rank 2 (host h) has left the job: the disk is full");
    EXPECT_EQ(loss.failure().ranks, std::vector<int>{2});
  }
}

// All of them waited for the same one.
TEST(DepartureTest, WhoWaitedTooLongSaysForWhomAndSoDoThoseWhoFollow) {
  const Status late = Status::Timeout("'x' waits for rank 3").About({.ranks = {3}});
  Status loss = PeerHasLeft(1, "rank 1", FarewellWords(late));
  loss = PeerHasLeft(2, "rank 2", FarewellWords(loss.WithContext("allreduce 'x'")));
  EXPECT_EQ(loss.code(), StatusCode::kTimeout);
  EXPECT_TRUE(loss.is_loss());
  EXPECT_FALSE(late.is_loss());
  EXPECT_EQ(loss.message(), "'x' waits for rank 3");
  EXPECT_EQ(loss.failure().ranks, std::vector<int>{3});
  // Nobody to blame: it has only not waited for the others to leave.
  const Status overdue = PeerHasLeft(1, "rank 1", FarewellWords(Status::Timeout("overdue")));
  EXPECT_EQ(overdue.code(), StatusCode::kPeerLost);
}

// Heartbeats know which of the two ranks is silent.
TEST(DepartureTest, ASilentRankAloneIsBlamedByThoseWhoFollow) {
  const Status silent = Status::PeerLost("rank 3 has given no sign of life for 10.0 s")
                            .About({.ranks = {3}, .finding = kSilentFinding});
  Status loss = PeerHasLeft(1, "rank 1", FarewellWords(silent));
  loss = PeerHasLeft(2, "rank 2", FarewellWords(loss.WithContext("allreduce 'x'")));
  EXPECT_EQ(loss.code(), StatusCode::kPeerLost);
  EXPECT_EQ(loss.message(), silent.message());
  EXPECT_EQ(loss.failure().ranks, std::vector<int>{3});
  EXPECT_EQ(loss.failure().finding, kSilentFinding);
  const Status in_call =
      silent.WithContext("allreduce 'x'").About({.operation = "allreduce", .tensor = "x"});
  EXPECT_EQ(PeerHasLeft(1, "rank 1", FarewellWords(in_call)).message(), silent.message());
  const Status in_join = Status::Timeout("join: it has waited")
                             .About({.operation = "join", .ranks = {3}, .finding = kSilentFinding});
  EXPECT_EQ(PeerHasLeft(1, "rank 1", FarewellWords(in_join)).message(), "it has waited");
  const Status dead = Status::PeerLost("dead").About({.ranks = {3}, .finding = kDeadFinding});
  EXPECT_EQ(PeerHasLeft(1, "rank 1", FarewellWords(dead)).failure().ranks, std::vector<int>{3});
  EXPECT_EQ(PeerHasLeft(1, "rank 1", FarewellWords(dead)).failure().finding, kDeadFinding);
  const Status late = Status::Timeout("late").About({.ranks = {3}, .finding = kSilentFinding});
  EXPECT_EQ(PeerHasLeft(1, "rank 1", FarewellWords(late)).failure().finding, kSilentFinding);
}

// The ranks of its host know it, and others have it from them.
TEST(DepartureTest, TheSignalThatEndedARankTravelsAlong) {
  const Status killed = Status::PeerLost("lost rank 3. SIGKILL (signal 9) ended rank 3.")
                            .About({.ranks = {3}, .signal = 9, .finding = kDeadFinding});
  Status loss = PeerHasLeft(2, "rank 2", FarewellWords(killed));
  loss = PeerHasLeft(1, "rank 1", FarewellWords(loss.WithContext("allreduce 'x'")));
  EXPECT_EQ(loss.message(), killed.message());
  EXPECT_EQ(loss.failure().ranks, std::vector<int>{3});
  EXPECT_EQ(loss.failure().signal, 9);
  EXPECT_EQ(loss.failure().finding, kDeadFinding);
  for (const char* const mark : {"$", "$9", "$x$", "$0$", "$65$", "$-9$", "$99999999999$"}) {
    EXPECT_EQ(PeerHasLeft(2, "rank 2", std::string(mark) + "3\nlost rank 3").failure().signal, 0)
        << mark;
  }
}

TEST(DepartureTest, OneThatLeftWithoutAWordIsNamedByThoseWhoFollow) {
  const Status near = PeerHasLeft(2, "rank 2", "");
  EXPECT_EQ(near.message(),
            "rank 2 has left the job while other ranks still need it; see its output");
  EXPECT_EQ(PeerHasLeft(1, "rank 1", FarewellWords(near)).message(), near.message());
}

// What one rank alone has seen may be a fault between two: both are named.
TEST(DepartureTest, OneThatLostAConnectionSaysItItself) {
  const Status lost = Status::PeerLost("lost the connection to rank 2").About({.ranks = {2}});
  const Status near = PeerHasLeft(1, "rank 1", FarewellWords(lost));
  EXPECT_EQ(near.message(), "rank 1 has left the job: lost the connection to rank 2");
  EXPECT_EQ(near.failure().ranks, (std::vector<int>{2, 1}));
  const Status far = PeerHasLeft(0, "rank 0", FarewellWords(near));
  EXPECT_EQ(far.message(), near.message());
  EXPECT_EQ(far.failure().ranks, near.failure().ranks);
}

TEST(DepartureTest, WordsThatAreCutShortStillNameTheFirst) {
  const Status first =
      PeerHasLeft(2, "rank 2", FarewellWords(Status::Internal("the disk is full")));
  const std::string words = FarewellWords(first).substr(0, 30);
  const Status second = PeerHasLeft(1, "rank 1", words);
  EXPECT_EQ(second.message(), first.message().substr(0, 28));
  EXPECT_EQ(second.failure().ranks, std::vector<int>{2});
}

TEST(DepartureTest, WordsOfAnotherKindBlameTheRankThatSentThem) {
  const std::string commas(1000, ',');
  for (const std::string& list : {std::string("x"), std::string("-5"), std::string("7x"), commas}) {
    const Status loss = PeerHasLeft(3, "rank 3", list + "\nthe disk is full");
    EXPECT_EQ(loss.message(), "rank 3 has left the job: the disk is full") << list;
    EXPECT_EQ(loss.failure().ranks, std::vector<int>{3}) << list;
  }
  EXPECT_EQ(PeerHasLeft(3, "rank 3", "no list").message(), "rank 3 has left the job: no list");
}

TEST(DepartureTest, ALongListOfRanksLeavesRoomForTheText) {
  std::vector<int> all(2000);
  std::iota(all.begin(), all.end(), 0);
  const std::string words = FarewellWords(Status::PeerLost("a switch died").About({.ranks = all}));
  const Status loss = PeerHasLeft(5000, "rank 5000", words.substr(0, 1000));
  EXPECT_EQ(loss.message(), "rank 5000 has left the job: a switch died");
  EXPECT_EQ(loss.failure().ranks.front(), 0);
}

TEST(DepartureTest, WhoLeavesInOrderHasNoWords) { EXPECT_EQ(FarewellWords(Status::Ok()), ""); }

}  // namespace
}  // namespace mydist
