// What a rank says of others when the root has given up waiting. Jobs of engines are in
// engine_stall_test.cc.
#include "engine/stall_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "conformance/status_checks.h"

namespace mydist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// No rank answers.
class SilentPlane final : public ControlPlane {
 public:
  Status Send(int, Bytes) override { return Status::Ok(); }
  Result<std::optional<IncomingMessage>> Receive() override {
    return std::optional<IncomingMessage>();
  }
  void Await(TimePoint) override {}
  void Wake() override {}
  void Attend(bool) override {}
  Status Close(TimePoint) override { return Status::Ok(); }
};

constexpr TimePoint kStart{std::chrono::hours(1)};
constexpr Duration kLimit = seconds(10);

// Rank 1 of two.
struct Waiting {
  Waiting() {
    topology.rank = topology.local_rank = 1;
    topology.size = topology.local_size = 2;
    topology.hosts = {"h", "h"};
    topology.pids = {getpid(), getpid()};
    request.name = "x";
  }
  void FollowAt(TimePoint now) {
    ExpectOk(guard.Follow(now, StallGuard::InFlight{&request, kStart}));
  }

  Topology topology;
  Request request;
  SilentPlane plane;
  Coordinator coordinator{{.rank = 1, .size = 2, .hosts = {"h", "h"}}, &plane};
  StallGuard guard{{.warning = kLimit}, &topology, &coordinator};
  const Status verdict = Status::Timeout("rank 0 has not come").About({.ranks = {0}});
};

TEST(StallGuard, ErrorsOfOneMomentShareWhatRanksHaveCompleted) {
  Waiting waiting;
  int asked = 0;
  waiting.guard.TellProgressBy([&asked] {
    ++asked;
    return std::vector<RankProgress>{{.rank = 0, .operation = "allreduce", .number = 7}};
  });
  const TimePoint begin = Now();
  const ProgressList first = waiting.guard.Locate(waiting.verdict).failure().progress;
  const ProgressList second = waiting.guard.Locate(waiting.verdict).failure().progress;
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->front().number, 7);
  if (Now() - begin < milliseconds(1)) EXPECT_EQ(first, second);
  std::this_thread::sleep_for(milliseconds(2));
  const int before = asked;
  const ProgressList later = waiting.guard.Locate(waiting.verdict).failure().progress;
  EXPECT_EQ(asked, before + 1);
  EXPECT_NE(later, first) << "they may have come further";
}

TEST(StallGuard, ARankThatGivesNoAnswerIsSilent) {
  Waiting waiting;
  const TimePoint asked = kStart + kLimit - milliseconds(300);
  waiting.FollowAt(asked);
  const Status refined = waiting.guard.Refine(waiting.verdict, asked + milliseconds(300));
  EXPECT_THAT(refined.message(), HasSubstr("(host h, pid"));
  EXPECT_THAT(refined.message(), HasSubstr("gives no answer"));
  EXPECT_EQ(refined.failure().finding, kSilentFinding);
  EXPECT_THAT(refined.failure().ranks, ElementsAre(0));
}

// It has submitted its tensor later than the others, so it asks later, too.
TEST(StallGuard, ARankThatWasAskedAMomentAgoIsNotSilent) {
  Waiting waiting;
  const TimePoint asked = kStart + kLimit - milliseconds(300);
  waiting.FollowAt(asked);
  const Status refined = waiting.guard.Refine(waiting.verdict, asked + milliseconds(1));
  EXPECT_EQ(refined.message(), "rank 0 has not come");
  EXPECT_EQ(refined.failure().finding, kLateFinding);
  EXPECT_THAT(refined.failure().ranks, ElementsAre(0));
}

// The root of two ranks, which waits for rank 1.
struct WaitingRoot {
  WaitingRoot() {
    topology.size = topology.local_size = 2;
    topology.hosts = {"h", "h"};
    topology.pids = {getpid(), getpid()};
    request.name = "x";
    guard.SetOnWarning([this](const std::string&) { ++warnings; });
    ExpectOk(coordinator.Announce({request}, kStart));
  }
  // Asks at the time for that, and then has waited for `waited`.
  void WaitFor(Duration waited) {
    FollowAt(kStart + waited - milliseconds(200));
    FollowAt(kStart + waited + milliseconds(300));
  }
  void FollowAt(TimePoint now) {
    ExpectOk(guard.Follow(now, StallGuard::InFlight{&request, kStart}));
  }
  bool NoteTold(int rank, const char* tensor = "x") {
    const Failure known{.ranks = {rank}, .finding = kSilentFinding};
    return guard.NoteTold(tensor, Status::Timeout("").About(known));
  }

  Topology topology;
  Request request;
  SilentPlane plane;
  Coordinator coordinator{{.rank = 0, .size = 2, .hosts = {"h", "h"}}, &plane};
  StallGuard guard{{.warning = kLimit}, &topology, &coordinator};
  int warnings = 0;
};

TEST(StallGuard, OfASilentRankThatTheRootNamesIsNotToldAgain) {
  WaitingRoot waiting;
  waiting.FollowAt(kStart + kLimit / 2);
  EXPECT_TRUE(waiting.NoteTold(1));
  waiting.WaitFor(kLimit);
  EXPECT_EQ(waiting.warnings, 0);
  waiting.WaitFor(2 * kLimit);
  EXPECT_EQ(waiting.warnings, 1) << "the root has told nothing this time";
}

TEST(StallGuard, ARootThatIsLateAddsNothing) {
  WaitingRoot waiting;
  waiting.WaitFor(kLimit);
  EXPECT_EQ(waiting.warnings, 1);
  EXPECT_TRUE(waiting.NoteTold(1, "y")) << "of another tensor";
  waiting.WaitFor(2 * kLimit);
  EXPECT_EQ(waiting.warnings, 1);
  waiting.WaitFor(4 * kLimit);
  EXPECT_EQ(waiting.warnings, 2);
  EXPECT_FALSE(waiting.NoteTold(1));
  EXPECT_TRUE(waiting.NoteTold(1)) << "the next time";
}

TEST(StallGuard, AnErrorHasHostAndProcessOfEveryRankToBlame) {
  Topology topology;
  topology.size = 4;
  topology.hosts = {"a", "a", "b", "b"};
  topology.pids = {10, 11, 12, 13};
  SilentPlane plane;
  Coordinator coordinator{{.rank = 0, .size = 4, .hosts = topology.hosts}, &plane};
  StallGuard guard{{}, &topology, &coordinator};
  const Failure known = guard.Locate(Status::Mismatch("").About({.ranks = {1, 3}})).failure();
  EXPECT_THAT(known.hosts, ElementsAre("a", "b"));
  EXPECT_THAT(known.pids, ElementsAre(11, 13));
  EXPECT_EQ(known.host, "");
  EXPECT_EQ(known.pid, 0);
  const Failure one = guard.Locate(Status::Timeout("").About({.ranks = {2}})).failure();
  EXPECT_THAT(one.hosts, ElementsAre("b"));
  EXPECT_THAT(one.pids, ElementsAre(12));
  EXPECT_EQ(one.pid, 12);
}

// The rank that was found silent is all that stays. Only a rank that goes on asks it once more.
TEST(StallGuard, AFailedRankLeavesWithoutASilentOneAtOnce) {
  for (const bool awaits_living : {false, true}) {
    Waiting waiting;
    waiting.guard.NoteSilent(waiting.verdict.About({.finding = kSilentFinding}));
    waiting.guard.BeginLeave(kStart, seconds(5), awaits_living);
    ExpectOk(waiting.coordinator.Depart("shutdown"));
    ExpectOk(waiting.guard.FollowLeave(kStart));
    const Duration answer_time = waiting.guard.NextLeave() - kStart;
    if (awaits_living) {
      EXPECT_GE(answer_time, milliseconds(100));
    } else {
      EXPECT_LE(answer_time, milliseconds(20));
    }
    const Status left = waiting.guard.FollowLeave(waiting.guard.NextLeave());
    ExpectError(left, StatusCode::kTimeout, {"rank 0 (host h"});
  }
}

}  // namespace
}  // namespace mydist
