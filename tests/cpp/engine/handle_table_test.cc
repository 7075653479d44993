#include "engine/handle_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace mydist {
namespace {

using ::testing::HasSubstr;

const TensorKey kX{0, "x"};
const TensorKey kY{0, "y"};

TEST(HandleTable, CompletesWhenEveryTensorHas) {
  HandleTable table;
  const Handle handle = *table.Open({kX, kY});
  table.Complete(handle, kX, Status::Ok());
  EXPECT_FALSE(*table.Poll(handle));
  table.Complete(handle, kY, Status::Ok());
  EXPECT_TRUE(*table.Poll(handle));
  EXPECT_TRUE((*table.Wait(handle, kNever))->ok());
  EXPECT_FALSE(table.Poll(handle).ok());
}

TEST(HandleTable, NoTensorsAreCompleteAtOnce) {
  HandleTable table;
  EXPECT_TRUE(*table.Poll(*table.Open({})));
}

TEST(HandleTable, TheFirstErrorWins) {
  HandleTable table;
  const Handle handle = *table.Open({kX, kY});
  table.Complete(handle, kX, Status::Mismatch("first"));
  table.Complete(handle, kY, Status::Timeout("second"));
  EXPECT_EQ((*table.Wait(handle, kNever))->message(), "first");
}

TEST(HandleTable, AHandleCanBeUsedOnce) {
  HandleTable table;
  const Handle handle = *table.Open({kX});
  table.Complete(handle, kX, Status::Ok());
  ASSERT_TRUE(table.Wait(handle, kNever).ok());
  EXPECT_EQ(table.Wait(handle, kNever).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(table.Poll(handle).status().message(), HasSubstr("handle 1 is unknown"));
}

TEST(HandleTable, ANameIsInFlightUntilItsTensorCompletes) {
  HandleTable table;
  const Handle handle = *table.Open({kX});
  // All or nothing: y is not taken by the refused call.
  EXPECT_THAT(table.Open({kY, kX}).status().message(),
              HasSubstr("tensor 'x' is already in flight"));
  EXPECT_TRUE(table.Open({kY}).ok());
  EXPECT_TRUE(table.Open({{1, "x"}}).ok()) << "another process set has names of its own";
  table.Complete(handle, kX, Status::Ok());
  EXPECT_TRUE(table.Open({kX}).ok()) << "also before the first handle has been waited for";
}

TEST(HandleTable, WaitGivesUpAtTheDeadlineAndKeepsTheHandle) {
  HandleTable table;
  const Handle handle = *table.Open({kX});
  const auto outcome = table.Wait(handle, Now());
  ASSERT_TRUE(outcome.ok());
  EXPECT_FALSE(outcome->has_value());
  table.Complete(handle, kX, Status::Ok());
  EXPECT_TRUE((*table.Wait(handle, Now()))->ok());
}

TEST(HandleTable, FailEndsEverythingUntilReset) {
  HandleTable table;
  const EngineTerm term = table.Reset();
  const Handle done = *table.Open({kY});
  table.Complete(done, kY, Status::Ok());
  const Handle handle = *table.Open({kX});
  table.Fail(term, Status::PeerLost("rank 1 died"));
  EXPECT_TRUE((*table.Wait(done, kNever))->ok()) << "what was complete stays as it was";
  EXPECT_EQ((*table.Wait(handle, kNever))->code(), StatusCode::kPeerLost);
  EXPECT_EQ(table.Open({kX}).status().message(), "rank 1 died");
  table.Reset();
  EXPECT_TRUE(table.Open({kX}).ok());
}

TEST(HandleTable, ALaterCallFailsWithItsOwnNameAndTheFirstCause) {
  HandleTable table;
  const EngineTerm term = table.Reset();
  table.Fail(term, Status::Aborted("rank 1 has left the job"));
  table.Fail(term, Status::Aborted("rank 2, which lost rank 1, has left the job"));
  const Status later = table.Open({kX, kY}, "allreduce").status();
  EXPECT_EQ(later.message(), "allreduce 'x': rank 1 has left the job");
  EXPECT_EQ(later.failure().operation, "allreduce");
  EXPECT_EQ(later.failure().tensor, "x");
  EXPECT_EQ(table.Open({kX}).status().message(), "rank 1 has left the job");
}

TEST(HandleTable, ALaterCallFailsAsTheCollectiveInWhichARankWasLost) {
  HandleTable table;
  const Failure known{.operation = "allreduce", .tensor = "first"};
  const Status lost = Status::PeerLost("allreduce 'first': rank 1 has died").About(known);
  table.Fail(table.Reset(), lost);
  const Status later = table.Open({kX}, "broadcast").status();
  EXPECT_EQ(later.message(), lost.message());
  EXPECT_EQ(later.failure(), lost.failure());
}

TEST(HandleTable, AnEngineLeftBehindCannotTouchItsSuccessorsCollectives) {
  HandleTable table;
  const EngineTerm old_term = table.Reset();
  const Handle old_handle = *table.Open({kX});
  table.Fail(old_term, Status::Aborted("shut down"));
  table.Reset();
  const Handle handle = *table.Open({kX});
  table.Complete(old_handle, kX, Status::Ok());
  EXPECT_FALSE(table.Open({kX}).ok()) << "the name is in flight for the new engine's handle";
  table.Fail(old_term, Status::PeerLost("rank 1 died"));
  EXPECT_FALSE(*table.Poll(handle));
  EXPECT_TRUE(table.Open({kY}).ok());
}

TEST(HandleTable, AReleasedHandleStillFreesItsName) {
  HandleTable table;
  const Handle handle = *table.Open({kX});
  table.Release(handle);
  EXPECT_FALSE(table.Open({kX}).ok());
  table.Complete(handle, kX, Status::Ok());
  EXPECT_TRUE(table.Open({kX}).ok());
}

TEST(HandleTable, KnowsWhatIsInFlightOfASet) {
  HandleTable table;
  const TensorKey key{2, "in set 2"};
  const Handle handle = *table.Open({key});
  EXPECT_EQ(table.NameInFlight(2), "in set 2");
  EXPECT_EQ(table.NameInFlight(1), std::nullopt);
  EXPECT_EQ(table.NameInFlight(3), std::nullopt);
  table.Complete(handle, key, Status::Ok());
  EXPECT_EQ(table.NameInFlight(2), std::nullopt);
}

TEST(HandleTable, KnowsWhatHasBeenInFlightForLongest) {
  HandleTable table;
  EXPECT_EQ(table.OldestInFlight(), std::nullopt);
  const Handle first = *table.Open({kY}, "allreduce");
  ASSERT_TRUE(table.Open({kX}, "broadcast").ok());
  EXPECT_EQ(table.OldestInFlight(), std::pair(std::string("allreduce"), std::string("y")));
  table.Release(first);
  EXPECT_EQ(table.OldestInFlight(), std::pair(std::string(), std::string("y")));
  table.Complete(first, kY, Status::Ok());
  EXPECT_EQ(table.OldestInFlight(), std::pair(std::string("broadcast"), std::string("x")));
}

TEST(HandleTable, WaitersWakeWhenAnotherThreadCompletes) {
  HandleTable table;
  constexpr int kCount = 2000;
  std::vector<Handle> handles;
  for (int i = 0; i < kCount; ++i) handles.push_back(*table.Open({{0, std::to_string(i)}}));
  std::thread completer([&] {
    for (int i = 0; i < kCount; ++i) {
      table.Complete(handles[static_cast<size_t>(i)], {0, std::to_string(i)}, Status::Ok());
    }
  });
  for (const Handle handle : handles) EXPECT_TRUE((*table.Wait(handle, kNever))->ok());
  completer.join();
  for (const Handle handle : handles) EXPECT_FALSE(table.Poll(handle).ok());
}

}  // namespace
}  // namespace mydist
