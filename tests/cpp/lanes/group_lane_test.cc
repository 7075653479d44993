// Lanes of one host: one process per rank.
#include "lanes/group_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "conformance/status_checks.h"
#include "memory/shm/forked_ranks.h"

namespace mydist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSize = 3;

std::shared_ptr<GroupLane> OpenLane(const shm::ForkedRanks::Seat& seat, const Config& config = {},
                                    const std::vector<int>& ranks = {}) {
  const LaneOptions options{seat.rank, kSize, "test", seat.exchange, ranks, /*world_size=*/8};
  Result<std::shared_ptr<GroupLane>> lane = GroupLane::Open(options, config);
  EXPECT_TRUE(lane.ok()) << lane.status().ToString();
  return *lane;
}

LaneCall SumOf(int64_t count) {
  return {OpKind::kAllreduce, DataType::kInt64, count, ReduceOp::kSum};
}

LaneWork::Run Sum(std::vector<int64_t>* data) {
  return [data](const LaneSite& site) -> Status {
    const Reduction reduction{DataType::kInt64, ReduceOp::kSum};
    const auto bytes = static_cast<int64_t>(data->size() * sizeof(int64_t));
    MYDIST_ASSIGN_OR_RETURN(Collectives * algorithm, site.For({OpKind::kAllreduce, DataType::kInt64,
                                                               ReduceOp::kSum, -1, bytes}));
    return algorithm->Allreduce(data->data(), static_cast<int64_t>(data->size()), reduction);
  };
}

Status SumAndWait(GroupLane& lane, std::vector<int64_t>* data, Duration limit = seconds(30)) {
  const auto work = lane.Submit(SumOf(static_cast<int64_t>(data->size())), limit, Sum(data),
                                nullptr, /*is_attended=*/true);
  EXPECT_TRUE(lane.Wait(*work, kNever));
  return work->status();
}

void RunOnAllRanks(const std::function<void(const shm::ForkedRanks::Seat&, GroupLane&)>& body) {
  shm::ForkedRanks ranks(kSize, [&](const shm::ForkedRanks::Seat& seat) {
    const std::shared_ptr<GroupLane> lane = OpenLane(seat);
    body(seat, *lane);
  });
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

TEST(GroupLane, AWaitingCallerExecutesWithoutAThread) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& seat, GroupLane& lane) {
    for (int64_t turn = 0; turn < 100; ++turn) {
      std::vector<int64_t> data(10, seat.rank + turn);
      ExpectOk(SumAndWait(lane, &data));
      EXPECT_EQ(data, std::vector<int64_t>(10, 3 + 3 * turn));
    }
    EXPECT_EQ(lane.sequence(), 100u);
  });
}

TEST(GroupLane, UnattendedOperationsEndInTheirOrder) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& seat, GroupLane& lane) {
    std::vector<std::vector<int64_t>> data(50, std::vector<int64_t>(5, seat.rank));
    std::vector<std::shared_ptr<LaneWork>> works;
    std::atomic<int> done_count{0};
    for (std::vector<int64_t>& tensor : data) {
      works.push_back(lane.Submit(
          SumOf(5), seconds(30), Sum(&tensor), [&](const Status&) { ++done_count; },
          /*is_attended=*/false));
    }
    EXPECT_TRUE(lane.Wait(*works.back(), kNever));
    for (const auto& work : works) EXPECT_TRUE(lane.Wait(*work, kNever));
    EXPECT_EQ(done_count.load(), 50);
    for (const auto& tensor : data) EXPECT_EQ(tensor, std::vector<int64_t>(5, 3));
  });
}

TEST(GroupLane, WhatFollowsAnOperationMayWaitForALaterOne) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& /*seat*/, GroupLane& lane) {
    std::vector<int64_t> first{1};
    std::vector<int64_t> second{1};
    std::atomic<bool> second_is_done{false};
    const auto follow = [&](const Status& status) {
      ExpectOk(status);
      const auto work = lane.Submit(SumOf(1), seconds(30), Sum(&second), nullptr, false);
      while (!work->is_done()) std::this_thread::yield();  // As Future::wait(): it drives nothing.
      second_is_done = true;
    };
    const auto work = lane.Submit(SumOf(1), seconds(30), Sum(&first), follow, false);
    EXPECT_TRUE(lane.Wait(*work, kNever));
    EXPECT_TRUE(second_is_done.load());
    EXPECT_EQ(second[0], kSize);
  });
}

TEST(GroupLane, WhatFollowsAnOperationMayWaitForOneThatWasSubmittedBefore) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& /*seat*/, GroupLane& lane) {
    std::vector<int64_t> first{1};
    std::vector<int64_t> second{1};
    std::atomic<bool> may_begin{false};
    std::shared_ptr<LaneWork> later;
    const auto follow = [&](const Status& status) {
      ExpectOk(status);
      while (!may_begin) std::this_thread::yield();
      while (!later->is_done()) std::this_thread::yield();
    };
    const auto work = lane.Submit(SumOf(1), seconds(30), Sum(&first), follow, false);
    later = lane.Submit(SumOf(1), seconds(30), Sum(&second), nullptr, false);
    may_begin = true;
    while (!work->is_done()) std::this_thread::yield();
    EXPECT_EQ(second[0], kSize);
  });
}

TEST(GroupLane, DifferentCallsAreAMismatchOnAllRanksAndTouchNoData) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& seat, GroupLane& lane) {
    std::vector<int64_t> data(seat.rank == 1 ? 2 : 1, 7);
    const Status status = SumAndWait(lane, &data);
    ExpectError(status, StatusCode::kMismatch,
                {"group 'test': its ranks call different operations",
                 "rank 0: operation 1, allreduce of 1 int64, Sum",
                 "rank 1: operation 1, allreduce of 2 int64, Sum"});
    EXPECT_EQ(data.front(), 7);
    std::vector<int64_t> next{1};
    ExpectOk(SumAndWait(lane, &next));
    EXPECT_EQ(next[0], kSize);
  });
}

TEST(GroupLane, ARankThatDoesNotComeIsNamedAndEndsTheLane) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& seat, GroupLane& lane) {
    std::vector<int64_t> data{1};
    if (seat.rank == 2) {
      std::this_thread::sleep_for(seconds(2));
      return;
    }
    const TimePoint begin = Now();
    const Status status = SumAndWait(lane, &data, milliseconds(300));
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_THAT(status.message(), HasSubstr("operation 1, allreduce of 1 int64, Sum"));
    EXPECT_THAT(status.message(), HasSubstr("did not take part within 0.3 s"));
    EXPECT_LT(Now() - begin, seconds(2));
    EXPECT_EQ(SumAndWait(lane, &data).message(), status.message());
  });
}

std::vector<int> RanksThatCompletedOne(const Failure& failure) {
  std::vector<int> ranks;
  for (const RankProgress& one : *failure.progress) {
    EXPECT_EQ(one.operation + " " + one.tensor, "allreduce group test");
    EXPECT_EQ(one.number, 1);
    ranks.push_back(one.rank);
  }
  return ranks;
}

// The setting ends a wait sooner than the operation's own limit. The note has ranks of the program.
TEST(GroupLane, AStallEndsTheWaitAfterTheSettingAndIsNoted) {
  Config config;
  config.stall_shutdown = milliseconds(200);
  shm::ForkedRanks ranks(kSize, [&](const shm::ForkedRanks::Seat& seat) {
    const std::shared_ptr<GroupLane> lane = OpenLane(seat, config, {3, 5, 7});
    std::vector<int64_t> data(1);
    ExpectOk(SumAndWait(*lane, &data));
    if (seat.rank == 1) return std::this_thread::sleep_for(seconds(1));
    const Status stalled = SumAndWait(*lane, &data);
    ExpectError(stalled, StatusCode::kTimeout,
                {"rank 1 (host ", "did not take part within 0.2 s",
                 "In the program, rank 1 of the group is rank 5."});
    EXPECT_EQ(RanksThatCompletedOne(stalled.failure()), (std::vector<int>{0, 1, 2}));
    const Status noted = LaneJournal::LastFailure();
    EXPECT_EQ(noted.code(), StatusCode::kTimeout);
    EXPECT_EQ(noted.failure().tensor, "group test, operation 2");
    EXPECT_EQ(noted.failure().ranks, std::vector<int>{5});
    EXPECT_EQ(RanksThatCompletedOne(noted.failure()), (std::vector<int>{3, 5, 7}));
    const std::vector<std::shared_ptr<const LaneJournal::Page>> pages = LaneJournal::Pages();
    ASSERT_EQ(pages.size(), 1u);
    EXPECT_EQ(pages[0]->counters.counts().operations, 2);
    EXPECT_EQ(pages[0]->counters.counts().bytes, 16);
  });
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

// The others have a longer limit, wait for another rank, or come later.
TEST(GroupLane, ARankThatGivesUpAloneIsNamedByTheOthersAtOnce) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& seat, GroupLane& lane) {
    std::vector<int64_t> data{1};
    if (seat.rank == 2) std::this_thread::sleep_for(milliseconds(900));
    const TimePoint begin = Now();
    const Status status =
        SumAndWait(lane, &data, seat.rank == 0 ? Duration(milliseconds(200)) : seconds(30));
    EXPECT_LT(Now() - begin, milliseconds(700));
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("did not take part within 0.2 s"));
    if (seat.rank == 0) {
      EXPECT_THAT(status.message(), Not(HasSubstr("gave up")));
    } else {
      EXPECT_THAT(status.message(), HasSubstr("rank 0 of the group (host "));
      EXPECT_THAT(status.message(), HasSubstr("gave up: group 'test', operation 1"));
    }
  });
}

TEST(GroupLane, TheOthersHearOfARankThatAborts) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& seat, GroupLane& lane) {
    std::vector<int64_t> data{1};
    const TimePoint begin = Now();
    if (seat.rank == 1) {
      lane.Abort(Status::Aborted("asked for"));
      std::this_thread::sleep_for(milliseconds(800));  // It is still there.
      return;
    }
    ExpectError(SumAndWait(lane, &data), StatusCode::kPeerLost,
                {"rank 1 of the group (host ", "gave up: asked for"});
    EXPECT_LT(Now() - begin, milliseconds(700));
  });
}

TEST(GroupLane, AWaitWithADeadlineEndsWhileTheOperationGoesOn) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& seat, GroupLane& lane) {
    std::vector<int64_t> data{1};
    if (seat.rank == 2) std::this_thread::sleep_for(milliseconds(700));
    const auto work = lane.Submit(SumOf(1), seconds(30), Sum(&data), nullptr,
                                  /*is_attended=*/true);
    if (seat.rank != 2) EXPECT_FALSE(lane.Wait(*work, Now() + milliseconds(50)));
    EXPECT_TRUE(lane.Wait(*work, kNever));
    ExpectOk(work->status());
    EXPECT_EQ(data[0], kSize);
  });
}

TEST(GroupLane, AbortEndsWhatWaits) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& seat, GroupLane& lane) {
    std::vector<int64_t> data{1};
    if (seat.rank == 2) {
      std::this_thread::sleep_for(milliseconds(500));
      return;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(100));
      lane.Abort(Status::Aborted("asked for"));
    });
    // Of the two that abort, the later one may have heard of the other.
    const Status ended = SumAndWait(lane, &data);
    const bool has_heard = ended.code() == StatusCode::kPeerLost;
    ExpectError(ended, has_heard ? StatusCode::kPeerLost : StatusCode::kAborted, {"asked for"});
    other.join();
  });
}

TEST(GroupLane, AReceiveEndsWithTheLane) {
  RunOnAllRanks([](const shm::ForkedRanks::Seat& seat, GroupLane& lane) {
    if (seat.rank == 2) {
      std::this_thread::sleep_for(seconds(1));
      return;
    }
    std::atomic<bool> has_ended{false};
    lane.posts().Receive(2, 0, [&](const Status& status, int, const Bytes&) {
      ExpectError(status, StatusCode::kTimeout, {"did not take part within 0.1 s"});
      has_ended = true;
      return nullptr;
    });
    std::vector<int64_t> data{1};
    EXPECT_EQ(SumAndWait(lane, &data, milliseconds(100)).code(), StatusCode::kTimeout);
    EXPECT_TRUE(has_ended.load());
  });
}

TEST(GroupLane, WhatComesAfterShutdownEndsAtOnce) {
  Result<std::shared_ptr<GroupLane>> lane = GroupLane::Open({0, 1, "gone", {}}, Config());
  ASSERT_TRUE(lane.ok()) << lane.status().ToString();
  (*lane)->Shutdown();
  std::vector<int64_t> data{5};
  Status told;
  const auto work = (*lane)->Submit(
      SumOf(1), seconds(30), Sum(&data), [&](const Status& status) { told = status; },
      /*is_attended=*/false);
  EXPECT_TRUE(work->is_done());
  ExpectError(work->status(), StatusCode::kAborted, {"group 'gone' was destroyed"});
  EXPECT_EQ(told.code(), StatusCode::kAborted);
}

TEST(GroupLane, ShutdownWaitsForTheOperationThatACallerExecutes) {
  Result<std::shared_ptr<GroupLane>> lane = GroupLane::Open({0, 1, "busy", {}}, Config());
  ASSERT_TRUE(lane.ok()) << lane.status().ToString();
  std::atomic<bool> has_begun{false};
  std::atomic<bool> has_ended{false};
  const auto work = (*lane)->Submit(
      SumOf(1), seconds(30),
      [&](const LaneSite&) {
        has_begun = true;
        std::this_thread::sleep_for(milliseconds(100));
        has_ended = true;
        return Status::Ok();
      },
      nullptr, /*is_attended=*/true);
  std::thread caller([&] { (*lane)->Wait(*work, kNever); });
  while (!has_begun) std::this_thread::yield();
  (*lane)->Shutdown();
  EXPECT_TRUE(has_ended.load());
  caller.join();
}

TEST(GroupLane, ALaneOfOneRankNeedsNoOtherRank) {
  Result<std::shared_ptr<GroupLane>> lane = GroupLane::Open({0, 1, "alone", {}}, Config());
  ASSERT_TRUE(lane.ok()) << lane.status().ToString();
  std::vector<int64_t> data{5};
  ExpectOk(SumAndWait(**lane, &data));
  EXPECT_EQ(data[0], 5);
}

}  // namespace
}  // namespace mydist
