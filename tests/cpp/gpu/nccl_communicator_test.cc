// The life of a communicator: made late and without blocking, used, closed or aborted, and what is
// said when something fails.
#include "gpu/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/rank_ordered_collectives.h"
#include "conformance/on_every_rank.h"
#include "conformance/status_checks.h"
#include "fakes/fake_device.h"
#include "fakes/fake_nccl.h"

namespace mydist {
namespace {

using nccl::Comm;
using nccl::Outcome;
using testing::FakeDevice;
using testing::FakeNccl;
using testing::FakeNcclWork;
using ::testing::HasSubstr;
using testing::OnEveryRank;

// Streams do their work at once, in the thread that puts it there.
void RunAtOnce(nccl::Stream, FakeNcclWork work) { work.run(); }

NcclIdBroadcast BroadcastOver(Collectives& collectives) {
  return [&collectives](nccl::UniqueId* id) {
    return collectives.Broadcast(id->internal, sizeof(id->internal), 0);
  };
}

struct Member {
  int rank;
  int size;
  NcclCommunicator& communicator;
};

// `body` as every rank, with a communicator that has not been opened.
void OnEveryMember(int size, const FakeNccl& nccl, const std::function<void(Member)>& body,
                   const NcclPatience& patience = {}) {
  OnEveryRank(size, [&](Connection& connection) {
    RankOrderedCollectives host(connection.transport.get());
    FakeDevice device({.index = connection.rank});
    NcclCommunicator communicator({.api = &nccl.api(),
                                   .device = &device,
                                   .set_name = "process set 7",
                                   .rank = connection.rank,
                                   .size = size},
                                  BroadcastOver(host), patience);
    body({connection.rank, size, communicator});
  });
}

// One float of every rank is summed.
Status SumOne(const Member& me, float* number) {
  return me.communicator.Group("a sum", [&](Comm comm) {
    return me.communicator.api().AllReduce(number, number, 1, nccl::ElementType::kFloat32,
                                           nccl::ReductionKind::kSum, comm, nullptr);
  });
}

// The communicator of a set of one rank, on this thread.
struct Alone {
  explicit Alone(const FakeNccl& nccl, const NcclPatience& patience = {})
      : communicator(
            {.api = &nccl.api(), .device = &device, .set_name = "process set 7"},
            [](nccl::UniqueId*) { return Status::Ok(); }, patience) {}

  FakeDevice device;
  NcclCommunicator communicator;
  Member member{0, 1, communicator};
};

Status WhyKilled() { return Status::PeerLost("rank 3 was killed"); }

class Communicator : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Communicator, ::testing::Values(1, 2, 4));

TEST_P(Communicator, IsMadeWhenFirstUsedAndSums) {
  FakeNccl nccl(RunAtOnce, {});
  OnEveryMember(GetParam(), nccl, [](const Member& me) {
    for (int round = 1; round <= 3; ++round) {
      auto number = static_cast<float>(me.rank + round);
      EXPECT_EQ(SumOne(me, &number).ToString(), "OK");
      EXPECT_EQ(number, static_cast<float>(me.size * (me.size - 1) / 2 + me.size * round));
    }
    EXPECT_EQ(me.communicator.Check().ToString(), "OK");
  });
  EXPECT_EQ(nccl.groups(), 3 * GetParam());
  EXPECT_EQ(nccl.aborts(), 0) << "a healthy communicator is closed";
}

TEST(CommunicatorFailure, OfTheIdReachesEveryRank) {
  FakeNccl nccl(RunAtOnce, {});
  nccl.FailId();
  OnEveryMember(3, nccl, [](const Member& me) {
    const Status status = me.communicator.Open();
    ExpectError(status, StatusCode::kInternal,
                {me.rank == 0 ? "something failed (code 2)" : "rank 0"});
    EXPECT_EQ(me.communicator.Open().message(), status.message()) << "the first one is final";
  });
}

TEST(CommunicatorFailure, WhileItIsMadeIsNamed) {
  FakeNccl nccl(RunAtOnce, {});
  nccl.FailAsync(0, Outcome::kInvalidUsage, "Duplicate GPU detected");
  nccl.FailAsync(1, Outcome::kInvalidUsage, "Duplicate GPU detected");
  OnEveryMember(2, nccl, [](const Member& me) {
    const Status status = me.communicator.Open();
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    for (const std::string part : {"making the communicator", "process set 7", "code 5",
                                   "Duplicate GPU detected", "NCCL_DEBUG"}) {
      EXPECT_THAT(status.message(), HasSubstr(part));
    }
    EXPECT_THAT(status.message(), HasSubstr("its rank " + std::to_string(me.rank) + " of 2"));
  });
  EXPECT_EQ(nccl.aborts(), 2);
}

TEST(CommunicatorFailure, OnTheDeviceIsSeenByCheck) {
  FakeNccl nccl(RunAtOnce, {});
  OnEveryMember(2, nccl, [&](const Member& me) {
    float number = 1;
    EXPECT_EQ(SumOne(me, &number).ToString(), "OK");
    nccl.FailAsync(me.rank, Outcome::kRemoteError, "socket closed");
    const Status status = me.communicator.Check();
    ExpectError(status, StatusCode::kPeerLost,
                {"a remote process is gone (code 6)", "socket closed"});
    EXPECT_EQ(SumOne(me, &number).message(), status.message());
  });
  EXPECT_EQ(nccl.aborts(), 2) << "after a failure nobody waits for the others";
}

TEST(CommunicatorFailure, OfACallEndsItsGroup) {
  FakeNccl nccl(RunAtOnce, {});
  Alone failing(nccl);
  const Status status =
      failing.communicator.Group("a call", [](Comm) { return Outcome::kInvalidArgument; });
  EXPECT_THAT(status.message(), HasSubstr("a call of process set 7"));
  // Were the group of this thread still open, this would never be launched.
  Alone next(nccl);
  float number = 2;
  EXPECT_EQ(SumOne(next.member, &number).ToString(), "OK");
  EXPECT_EQ(nccl.groups(), 1);
}

// A rank alone, whose peers never come.
struct Deserted {
  explicit Deserted(const NcclPatience& how_long = {}, WaitWatch watching = nullptr)
      : patience(how_long), watch(std::move(watching)) {}

  NcclPatience patience;
  WaitWatch watch;
  FakeNccl nccl{[](nccl::Stream, FakeNcclWork) {}, {}};
  FakeDevice device;
  NcclCommunicator communicator{{.api = &nccl.api(),
                                 .device = &device,
                                 .set_name = "the world",
                                 .rank = 0,
                                 .size = 2,
                                 .watch = watch},
                                [](nccl::UniqueId*) { return Status::Ok(); },
                                patience};
};

TEST(CommunicatorPatience, EndsWhenAPeerNeverComes) {
  Deserted rank({.call = std::chrono::milliseconds(5)});
  const Status status = rank.communicator.Open();
  ExpectError(status, StatusCode::kTimeout, {"making the communicator of the world"});
  EXPECT_EQ(rank.communicator.Close(kNever, nullptr).ToString(), status.ToString());
  rank.communicator.Abort(WhyKilled());
  EXPECT_EQ(rank.communicator.Check().ToString(), status.ToString()) << "the first is final";
  EXPECT_EQ(rank.nccl.aborts(), 1);
}

TEST(CommunicatorPatience, OfAFarewellIsLimited) {
  FakeNccl nccl(RunAtOnce, {});
  OnEveryMember(2, nccl, [](const Member& me) {
    EXPECT_EQ(me.communicator.Open().ToString(), "OK");
    if (me.rank == 1) return me.communicator.Abort(WhyKilled());
    const Status status = me.communicator.Close(Now() + std::chrono::milliseconds(5), nullptr);
    ExpectError(status, StatusCode::kTimeout, {"closing the communicator of process set 7"});
  });
  EXPECT_EQ(nccl.aborts(), 2);
}

TEST(CommunicatorWatch, EndsAStartWhenAPeerIsLost) {
  int asked = 0;
  Deserted rank({}, [&] { return ++asked < 5 ? Status::Ok() : WhyKilled(); });
  EXPECT_EQ(rank.communicator.Open().ToString(), WhyKilled().ToString());
  EXPECT_EQ(asked, 5);
  EXPECT_EQ(rank.communicator.Check().ToString(), WhyKilled().ToString()) << "the first is final";
}

TEST(CommunicatorWatch, IsNotAskedWhenAllClose) {
  FakeNccl nccl(RunAtOnce, {});
  OnEveryRank(2, [&](Connection& connection) {
    RankOrderedCollectives host(connection.transport.get());
    FakeDevice device({.index = connection.rank});
    bool is_closing = false;
    NcclCommunicator communicator(
        {.api = &nccl.api(),
         .device = &device,
         .set_name = "the world",
         .rank = connection.rank,
         .size = 2,
         .watch = [&] { return is_closing ? WhyKilled() : Status::Ok(); }},
        BroadcastOver(host));
    ExpectOk(communicator.Open());
    is_closing = true;
    ExpectOk(communicator.Close(kNever, nullptr));
  });
}

TEST(CommunicatorAbort, EndsAHangingStart) {
  Deserted rank;
  Status status;
  std::thread caller([&] { status = rank.communicator.Open(); });
  rank.nccl.AwaitInitialising(1);
  rank.communicator.Abort(WhyKilled());
  caller.join();
  EXPECT_EQ(status.ToString(), WhyKilled().ToString());
  EXPECT_EQ(rank.communicator.Open().ToString(), WhyKilled().ToString());
  EXPECT_EQ(rank.nccl.aborts(), 1);
}

TEST(CommunicatorAbort, BeforeTheStartKeepsNcclOut) {
  Deserted rank;
  rank.communicator.Abort(WhyKilled());
  EXPECT_EQ(rank.communicator.Open().ToString(), WhyKilled().ToString());
  EXPECT_EQ(rank.communicator.Check().ToString(), WhyKilled().ToString());
  rank.communicator.Abort(Status::Internal("another reason"));
  EXPECT_EQ(rank.communicator.Check().ToString(), WhyKilled().ToString()) << "the first is final";
  EXPECT_EQ(rank.nccl.aborts(), 0);
}

TEST(CommunicatorAbort, EndsAHangingLaunch) {
  FakeNccl nccl(RunAtOnce, {.launch_polls = 1 << 30});
  Alone rank(nccl);
  EXPECT_EQ(rank.communicator.Open().ToString(), "OK");
  float number = 1;
  Status status;
  std::thread caller([&] { status = SumOne(rank.member, &number); });
  while (nccl.groups() == 0) std::this_thread::yield();
  rank.communicator.Abort(WhyKilled());
  caller.join();
  EXPECT_EQ(status.ToString(), WhyKilled().ToString());
  EXPECT_EQ(number, 1);
}

// NCCL does not come back from a call, as when the driver's queue is full.
TEST(CommunicatorAbort, DoesNotWaitForACallThatHangs) {
  FakeNccl nccl(RunAtOnce, {});
  Alone rank(nccl, {.abort_grace = std::chrono::milliseconds(2)});
  std::atomic<bool> is_inside = false;
  Status status;
  std::thread caller([&] {
    status = rank.communicator.Group("a call", [&](Comm) {
      is_inside = true;
      while (nccl.aborts() == 0) std::this_thread::yield();
      return Outcome::kSuccess;
    });
  });
  while (!is_inside) std::this_thread::yield();
  EXPECT_EQ(rank.communicator.Check().ToString(), "OK") << "does not wait either";
  rank.communicator.Abort(WhyKilled());
  caller.join();
  EXPECT_EQ(status.ToString(), WhyKilled().ToString());
}

}  // namespace
}  // namespace mydist
