// The kernel between GPUs of a host behind whole engines: when it is taken, for what, that all
// ranks take it or none does, and what becomes of it when one is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "engine/device/gpu_job.h"

namespace mydist {
namespace {

using ::testing::AllOf;
using testing::ExpectFusedSum;
using testing::ExpectSum;
using testing::FakeIpcHost;
using testing::GpuCaller;
using testing::GpuFactOf;
using testing::GpuJob;
using testing::GpuJobOptions;
using ::testing::HasSubstr;
using testing::Numbers;
using testing::ReduceInPassingSets;
using testing::WithNccl;

GpuJobOptions WithIpc(FakeIpcHost& host, GpuIpcChoice choice, GpuJobOptions options = {}) {
  options.ipc = &host;
  options.job.config.gpu_ipc = choice;
  return options;
}

// The kernel is all that is put on a device as an operation, but for NCCL.
int64_t OperationsOf(GpuJob& job, int rank) { return job.device(rank).counts().operations; }

constexpr int64_t kTrial = 2;
constexpr int64_t kLargeCount = kIpcHalfBytes / 4 + 1;

TEST(EngineIpc, TakesWhatIsSmall) {
  FakeIpcHost host;
  GpuJob job(3, WithIpc(host, GpuIpcChoice::kOn));
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "small", 5000);
    ExpectSum(rank, caller, "half", kLargeCount - 1);
    EXPECT_EQ(OperationsOf(job, rank.rank()), kTrial + 2);
    ExpectSum(rank, caller, "large", kLargeCount);
    const GpuCaller::Tensor tensor = caller.Make(Numbers(3000, rank.rank()));
    Submission broadcast = caller.InPlace(OpKind::kBroadcast, "b", tensor);
    broadcast.request.root_rank = 1;
    EXPECT_TRUE(rank.Run(std::move(broadcast)).ok());
    EXPECT_EQ(caller.Read(tensor), Numbers(3000, 1));
    EXPECT_EQ(OperationsOf(job, rank.rank()), kTrial + 2);
    EXPECT_THAT(GpuFactOf(rank),
                HasSubstr("from GPU to GPU up to 2016 KiB (MYDIST_GPU_IPC=on), else through host"));
  });
}

TEST(EngineIpc, FusedAllreducesGoOverIt) {
  FakeIpcHost host;
  GpuJob job(3, WithIpc(host, GpuIpcChoice::kOn, WithNccl()));
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "the first", 10);  // After a trial, which copies.
    for (int step = 0; step < 3; ++step) ExpectFusedSum(job, rank, caller);
  });
  EXPECT_TRUE(job.nccl().calls().empty());
}

TEST(EngineIpc, LeavesTheRestToNccl) {
  FakeIpcHost host;
  GpuJob job(2, WithIpc(host, GpuIpcChoice::kOn, WithNccl()));
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "small", 5000);
    EXPECT_TRUE(job.nccl().calls().empty());
    ExpectSum(rank, caller, "large", kLargeCount);
    EXPECT_THAT(GpuFactOf(rank), HasSubstr("up to 2016 KiB (MYDIST_GPU_IPC=on), else NCCL 2.32.3"));
  });
  EXPECT_EQ(job.nccl().calls().size(), 2u);
  job.Shutdown();
  EXPECT_EQ(job.nccl().aborts(), 0);
}

// Whatever comes of it, all ranks come to the same.
TEST(EngineIpc, IsMeasured) {
  for (const bool has_nccl : {false, true}) {
    FakeIpcHost host;
    GpuJob job(3, WithIpc(host, GpuIpcChoice::kAuto, has_nccl ? WithNccl() : GpuJobOptions{}));
    job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
      for (const int64_t count : {1, 2000, 20000, 200000}) {
        ExpectSum(rank, caller, "x" + std::to_string(count), count);
      }
      EXPECT_THAT(GpuFactOf(rank), HasSubstr("as measured"));
    });
    for (const int rank : {1, 2}) {
      EXPECT_EQ(GpuFactOf(job.rank(rank)), GpuFactOf(job.rank(0)));
      EXPECT_EQ(OperationsOf(job, rank), OperationsOf(job, 0));
    }
  }
}

TEST(EngineIpc, ProcessSetsHaveTheirOwnAndLeaveItInOrder) {
  FakeIpcHost host;
  GpuJob job(3, WithIpc(host, GpuIpcChoice::kOn));
  ReduceInPassingSets(job, 3);
  job.Shutdown();
  EXPECT_EQ(host.board_count(), 5) << "a link was not closed in order";
}

// An allreduce works, without the kernel, and every rank gives this reason.
void ExpectUnused(GpuJob& job, const std::string& reason) {
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    ExpectSum(rank, caller, "x", 5000);
    EXPECT_THAT(GpuFactOf(rank),
                AllOf(HasSubstr("nothing goes from GPU to GPU"), HasSubstr(reason)));
    EXPECT_EQ(OperationsOf(job, rank.rank()), 0);
  });
}

TEST(EngineIpcChoice, CanBeOff) {
  FakeIpcHost host;
  GpuJob job(2, WithIpc(host, GpuIpcChoice::kOff));
  ExpectUnused(job, "MYDIST_GPU_IPC=off on rank 0");
  EXPECT_EQ(host.board_count(), 0);
}

TEST(EngineIpcChoice, OneRankThatCannotKeepsAllFromIt) {
  FakeIpcHost host;
  std::atomic<int> count = 0;
  host.on_open = [&](int) {
    return ++count == 3 ? Status::Internal("no peer access") : Status::Ok();
  };
  GpuJob job(3, WithIpc(host, GpuIpcChoice::kOn));
  ExpectUnused(job, "no peer access");
}

// Whether it is asked for or measured.
TEST(EngineIpcChoice, SoDoesOneOnWhichOtherNumbersArrive) {
  for (const GpuIpcChoice choice : {GpuIpcChoice::kOn, GpuIpcChoice::kAuto}) {
    FakeIpcHost host;
    std::atomic<int> launches = 0;
    host.on_done = [&](int device, const IpcAllreduce& job) {
      ++launches;
      if (device == 1 && job.output != nullptr) static_cast<int32_t*>(job.output)[0] += 1;
    };
    GpuJob job(3, WithIpc(host, choice));
    job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
      for (int step = 0; step < 3; ++step) ExpectSum(rank, caller, "x", 5000);
      EXPECT_THAT(GpuFactOf(rank), AllOf(HasSubstr("nothing goes from GPU to GPU"),
                                         HasSubstr("its rank 1: it adds up to other numbers")));
    });
    EXPECT_LE(launches, 2 * 3) << "those of the trial";
  }
}

// The kernel of the trial waits for ever, and the first set's ends it. The next does not try again.
TEST(EngineIpcChoice, SoDoesOneThatNothingReaches) {
  FakeIpcHost host;
  host.has_deaf_boards = true;
  GpuJobOptions options = WithIpc(host, GpuIpcChoice::kOn);
  options.job.ipc_patience = std::chrono::milliseconds(300);
  {
    GpuJob job(3, options);
    job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
      for (int step = 0; step < 3; ++step) ExpectSum(rank, caller, "x", 5000);
      EXPECT_THAT(GpuFactOf(rank), AllOf(HasSubstr("nothing goes from GPU to GPU"),
                                         HasSubstr("its rank 0: nothing of what another rank")));
      EXPECT_EQ(OperationsOf(job, rank.rank()), 1);
    });
    ReduceInPassingSets(job, 3);
    EXPECT_EQ(host.board_count(), 3);
  }
  EXPECT_EQ(host.open_count(), 0);
}

TEST(EngineIpcChoice, SoDoesAnotherHost) {
  FakeIpcHost host;
  GpuJobOptions options = WithIpc(host, GpuIpcChoice::kOn);
  options.job.hosts = {"a", "a", "b"};
  GpuJob job(3, options);
  ExpectUnused(job, "not all ranks are on one host");
}

// The handle has completed, and the kernel waits on the GPU for a rank whose own work never begins.
TEST(EngineIpcLoss, EndsAKernelThatWaits) {
  FakeIpcHost host;
  GpuJob job(2, WithIpc(host, GpuIpcChoice::kOn));
  job.OnEveryRank(
      [&](EngineRank& rank, GpuCaller& caller) { ExpectSum(rank, caller, "first", 10); });
  std::atomic<bool> is_let_go = false;
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    if (rank.rank() == 1) caller.Hold(is_let_go);
    const GpuCaller::Tensor tensor = caller.Make(Numbers(1000, rank.rank()));
    const Status status = rank.Run(caller.InPlace(OpKind::kAllreduce, "x", tensor));
    if (rank.rank() == 1) {
      if (!status.ok()) EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.ToString();
      // What was put there is not done; the engine finds that by itself.
      job.device(1).Lose("the GPU fell off the bus");
      is_let_go = true;
      return;
    }
    caller.Settle(tensor);
    const Status late = rank.Run(caller.InPlace(OpKind::kAllreduce, "late", tensor));
    EXPECT_EQ(late.code(), StatusCode::kPeerLost) << late.ToString();
    EXPECT_THAT(late.message(), HasSubstr("rank 1"));
  });
}

}  // namespace
}  // namespace mydist
