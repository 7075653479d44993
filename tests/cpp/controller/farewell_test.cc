// A rank whose engine stops with an error while its process lives on: nobody waits for it, what it
// had decided stands, and who leaves in order is not taken for it.
#include "controller/membership.h"

#include <gmock/gmock.h>

#include <vector>

#include "controller/simulated_job.h"
#include "transport/factory.h"
#include "world/departure.h"

namespace mydist {
namespace {

using ::testing::Contains;
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

// Each of three has the stream from the rank before it, so the failure of rank 0 ends rank 1, and
// that of rank 1 rank 2, which has not heard from rank 0.
void FailOneAfterAnother(SimulatedJob* job, const std::string& why) {
  for (int rank = 0; rank < 3; ++rank) job->Announce(rank, MakeRequest("a"));
  job->RunUntilQuiet();
  job->Hold(0, 2);
  job->Fail(0, Status::PeerLost(why));
  job->RunUntilQuiet();
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

// The stream comes to rank 2 through rank 1, which is stopped and passes nothing on.
TEST(FarewellChain, ATimeOutReachesRanksThatTheStreamDoesNotReach) {
  SimulatedJob job({.size = 3, .radix = 1});
  job.Announce(0, MakeRequest("a"));
  job.Announce(2, MakeRequest("a"));
  job.RunUntilQuiet();
  job.Hold(0, 1);
  job.Fail(0, Status::Timeout("rank 1 gives no answer").About({.ranks = {1}}));
  job.RunUntilQuiet();
  EXPECT_EQ(job.outcome(2).code(), StatusCode::kTimeout) << job.outcome(2).ToString();
  EXPECT_EQ(job.outcome(2).message(), "rank 1 gives no answer");
  EXPECT_EQ(job.outcome(2).failure().ranks, std::vector<int>{1});
}

// Rank 2 has the stream through rank 1, which knows nothing yet: it waits, and asks.
TEST(FarewellChain, WhoHasLeftIsNotSilent) {
  for (const bool asks_before : {false, true}) {
    SimulatedJob job({.size = 3, .radix = 1});
    job.Announce(2, MakeRequest("a"));
    job.RunUntilQuiet();
    Coordinator& asker = job.coordinator(2);
    job.Hold(0, 1);
    if (asks_before) ASSERT_TRUE(asker.Inquire(kGlobalProcessSet, "a").ok());
    job.Fail(0, Status::Internal("a disk"));
    job.RunUntilQuiet();
    if (!asks_before) ASSERT_TRUE(asker.Inquire(kGlobalProcessSet, "a").ok());
    job.RunUntilQuiet();
    EXPECT_THAT(asker.inquiry().Silent(), ::testing::IsEmpty());
    EXPECT_THAT(asker.inquiry().Idle(), Contains(0));
  }
}

TEST(Farewells, AreNoneOfWhoLeavesInOrder) {
  SimulatedJob job({.size = 3});
  for (int rank = 0; rank < 3; ++rank) job.Depart(rank, "shutdown");
  job.RunUntilQuiet();
  const uint64_t messages = job.MessagesSent();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(job.Log(rank), Contains("finished")) << rank;
    job.coordinator(rank).Leave(Status::Ok());
  }
  EXPECT_EQ(job.MessagesSent(), messages);
}

// In the middle of a collective no message but these is taken in.
TEST(FarewellInACollective, OneThatBlamesAnAwaitedRankEndsTheWait) {
  std::vector<Connection> connections = ConnectLoopback(3);
  Coordinator leaver({.rank = 0, .size = 3}, connections[0].control.get());
  Coordinator waiter({.rank = 2, .size = 3}, connections[2].control.get());
  const auto attend = [&](const std::vector<int>& awaited) {
    return waiter.AttendWait(Now(), awaited);
  };
  EXPECT_TRUE(attend({0, 1}).ok());
  leaver.Leave(Status::PeerLost("rank 1 has given no sign of life")
                   .About({.ranks = {1}, .finding = kSilentFinding}));
  EXPECT_TRUE(attend({0}).ok()) << "its data may still be on the way";
  const Status loss = attend({0, 1});
  EXPECT_EQ(loss.code(), StatusCode::kPeerLost);
  EXPECT_EQ(loss.failure().ranks, std::vector<int>{1});
  EXPECT_EQ(loss.failure().finding, kSilentFinding);
}

}  // namespace
}  // namespace mydist
