// Ranks that are lost, or whose NCCL fails, while others wait for them on their GPUs: nothing hangs
// and everybody learns why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "controller/messages/wire.h"
#include "engine/device/gpu_job.h"
#include "fakes/forwarding.h"
#include "timeline/event.h"

namespace mydist {
namespace {

using testing::ExpectSum;
using testing::FakeNccl;
using testing::GpuCaller;
using testing::GpuJob;
using testing::GpuJobOptions;
using ::testing::HasSubstr;
using testing::Numbers;
using testing::WithNccl;

void ExpectLossOf(int rank, const Status& status) {
  ExpectError(status, StatusCode::kPeerLost, {"rank " + std::to_string(rank)});
}

// A rank that ends with an error tells the root, which tells all (kAborted), and its peers
// (kPeerLost): whichever is read first. Both name it and what happened to it.
void ExpectEndOf(int rank, const Status& status) {
  EXPECT_TRUE(status.code() == StatusCode::kPeerLost || status.code() == StatusCode::kAborted)
      << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("rank " + std::to_string(rank)));
  EXPECT_THAT(status.message(), HasSubstr("has left the job: "));
}

// So that the ranks have a communicator.
void ReduceOnce(GpuJob& job) {
  job.OnEveryRank(
      [&](EngineRank& rank, GpuCaller& caller) { ExpectSum(rank, caller, "first", 1000); });
}

TEST(EngineNcclLoss, OfARankThatMakesNoCommunicatorEndsTheOthers) {
  GpuJob job(3, WithNccl());
  job.nccl().Break(1, FakeNccl::Fault::kInitFails);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const GpuCaller::Tensor tensor = caller.Make(Numbers(1000, rank.rank()));
    const Status status = rank.Run(caller.InPlace(OpKind::kAllreduce, "x", tensor));
    caller.Settle(tensor);
    if (rank.rank() != 1) return ExpectLossOf(1, status);
    ExpectError(status, StatusCode::kInternal, {"making the communicator of process set 0"});
  });
}

// Its work is on the stream already, and the handle complete.
TEST(EngineNcclLoss, LetsGoOfAStreamThatWaitsForALostRank) {
  GpuJob job(2, WithNccl());
  ReduceOnce(job);
  job.nccl().Break(1, FakeNccl::Fault::kCallsFail);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const GpuCaller::Tensor tensor = caller.Make(Numbers(1000, rank.rank()));
    const Status status = rank.Run(caller.InPlace(OpKind::kAllreduce, "x", tensor));
    ASSERT_NE(tensor.order->done, nullptr);
    caller.Settle(tensor);
    if (rank.rank() == 1) {
      EXPECT_EQ(status.code(), StatusCode::kInternal);
      return;
    }
    // The loss may be known before the call has returned.
    if (!status.ok()) ExpectEndOf(1, status);
    ExpectEndOf(1, rank.Run(caller.InPlace(OpKind::kAllreduce, "next", tensor)));
  });
  EXPECT_EQ(job.nccl().aborts(), 2);
}

// To end NCCL's work is to wait for the stream, and there the work of another communicator lies in
// front of it, which waits for the lost rank, too.
TEST(EngineNcclLoss, EndsTheWorkOfAllLinksAtOnce) {
  GpuJob job(2, WithNccl());
  std::array<ProcessSetId, 2> sets{};
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ProcessSetId& set = sets[static_cast<size_t>(rank.rank())];
    ExpectSum(rank, caller, "first", 1000);
    ASSERT_TRUE(AddSet(rank, {0, 1}, &set).ok());
    ExpectSum(rank, caller, "second", 1000, set);
  });
  std::atomic<bool> is_let_go = false;
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    if (rank.rank() == 1) caller.Hold(is_let_go);
    const GpuCaller::Tensor front = caller.Make(Numbers(1000, rank.rank()));
    const GpuCaller::Tensor behind = caller.Make(Numbers(1000, rank.rank()));
    Submission of_set = caller.InPlace(OpKind::kAllreduce, "front", front);
    of_set.request.process_set = sets[static_cast<size_t>(rank.rank())];
    const Status first = rank.Run(std::move(of_set));
    const Status second = rank.Run(caller.InPlace(OpKind::kAllreduce, "behind", behind));
    if (rank.rank() == 0) {
      EXPECT_TRUE(first.ok() && second.ok()) << first.ToString() << second.ToString();
      job.nccl().FailAsync(0, nccl::Outcome::kRemoteError, "the cable is cut");
      caller.Settle(behind);
      is_let_go = true;
      const Status late = rank.Run(caller.InPlace(OpKind::kAllreduce, "next", front));
      ExpectError(late, StatusCode::kPeerLost, {"the cable is cut"});
    }
    caller.Settle(behind);
  });
  EXPECT_GE(job.nccl().aborts(), 2);
}

// The host of rank 0 waits for what NCCL sums on its own host before it can send it to the other.
TEST(EngineNcclLoss, EndsAStagingThatWaitsForALostRank) {
  JobOptions hosts{.hosts = {"a", "a", "b"}};
  GpuJob job(3, WithNccl(hosts));
  ReduceOnce(job);
  job.nccl().Break(1, FakeNccl::Fault::kCallsFail);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const GpuCaller::Tensor tensor = caller.Make(Numbers(1000, rank.rank()));
    const Status status = rank.Run(caller.InPlace(OpKind::kAllreduce, "x", tensor));
    EXPECT_FALSE(status.ok());
    if (rank.rank() == 0) ExpectLossOf(1, status);
    caller.Settle(tensor);
  });
}

// A control plane that tells when it sends the event that a tensor is complete.
class TellingPlane final : public testing::ForwardingPlane {
 public:
  TellingPlane(std::unique_ptr<ControlPlane> inner, std::function<void()> tell)
      : ForwardingPlane(std::move(inner)), tell_(std::move(tell)) {}
  Status Send(int peer, Bytes payload) override {
    if (HasCompletion(payload)) tell_();
    return ForwardingPlane::Send(peer, std::move(payload));
  }

 private:
  static bool HasCompletion(const Bytes& payload) {
    const auto kind = PeekKind(payload);
    if (!kind.ok() || *kind != MessageKind::kTimeline) return false;
    const auto events = payload.begin() + std::ptrdiff_t{kMessageHeaderBytes};
    const auto block = DecodeEvents({events, payload.end()});
    return block.ok() &&
           std::any_of(block->events.begin(), block->events.end(), [](const TimelineEvent& event) {
             return event.lane == "x" && event.name == event_name::kComplete;
           });
  }

  const std::function<void()> tell_;
};

// To end the work of a GPU may take longer than rank 0 collects events.
TEST(EngineNcclLoss, TheLastEventsAreSentBeforeTheGpusEnd) {
  std::atomic<FakeNccl*> nccl = nullptr;
  std::atomic<int> aborts_before = -1;
  GpuJobOptions options = WithNccl();
  options.job.timeline_path = ::testing::TempDir() + "the_last_events_are_sent.json";
  options.job.control = [&](int rank, std::unique_ptr<ControlPlane> inner) {
    const auto tell = [&, rank] {
      if (rank == 1) aborts_before = nccl.load()->aborts();
    };
    return std::make_unique<TellingPlane>(std::move(inner), tell);
  };
  GpuJob job(2, options);
  nccl = &job.nccl();
  ReduceOnce(job);
  job.nccl().Break(1, FakeNccl::Fault::kCallsFail);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const GpuCaller::Tensor tensor = caller.Make(Numbers(1000, rank.rank()));
    const Status status = rank.Run(caller.InPlace(OpKind::kAllreduce, "x", tensor));
    EXPECT_TRUE(rank.rank() == 0 || !status.ok());
    caller.Settle(tensor);
  });
  job.Shutdown();
  EXPECT_EQ(aborts_before.load(), 0);
  EXPECT_GT(job.nccl().aborts(), 0);
}

TEST(EngineNcclLoss, ACallThatHangsEndsWithTheShutdown) {
  GpuJobOptions options = WithNccl();
  options.job.config.shutdown_drain = std::chrono::milliseconds(50);
  GpuJob job(2, options);
  ReduceOnce(job);
  job.nccl().Break(0, FakeNccl::Fault::kCallsHang);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const GpuCaller::Tensor tensor = caller.Make(Numbers(1000, rank.rank()));
    const Result<Handle> handle = rank.Submit(caller.InPlace(OpKind::kAllreduce, "x", tensor));
    ASSERT_TRUE(handle.ok());
    // Rank 1 has done its part: both have agreed on it, and rank 0 cannot leave before it does its.
    job.nccl().AwaitRunning(1);
    EXPECT_TRUE(rank.engine->Shutdown()) << "the engine was left behind";
    if (rank.rank() == 0) EXPECT_FALSE(rank.Wait(handle).ok());
    caller.Settle(tensor);
  });
}

TEST(EngineNcclRest, AnEngineWhoseGpuIsIdleDoesNotWakeUp) {
  GpuJob job(2, WithNccl());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "x", 1000);
    AwaitQuiet(rank, 250);  // Longer than between two looks at work that goes on.
  });
}

}  // namespace
}  // namespace mydist
