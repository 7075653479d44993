// The trial of a link between GPUs: what does not arrive, or arrives as something else, keeps all
// ranks from it, for one reason, and nobody waits for ever.
#include "algorithms/device/ipc_connect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "algorithms/device/ipc_ranks.h"
#include "gpu/kernels/ipc_plan.h"

namespace mydist::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What a rank tries its link with. It stays where it is until the stream has passed.
struct Ground {
  explicit Ground(const IpcRank& rank)
      : link(rank.Link()),
        memory(ValueOf(rank.device.Allocate(kIpcTrialBytes))),
        pinned(ValueOf(rank.device.AllocatePinned(kIpcTrialBytes))),
        trial{.link = link.get(),
              .seat = {.device = &rank.device, .stream = rank.stream},
              .exchange = &rank.host,
              .memory = memory.get(),
              .pinned = pinned.get(),
              .patience = std::chrono::hours(1)} {}

  const std::shared_ptr<IpcLink> link;
  const std::shared_ptr<uint8_t> memory;
  const std::shared_ptr<uint8_t> pinned;
  IpcTrial trial;
};

TEST(IpcTrial, FindsNothingWhereAllIsWell) {
  for (const int size : {2, 3, 8}) {
    FakeIpcHost host;
    OnIpcRanks(size, host, {}, [&](const IpcRank& rank) {
      const Ground ground(rank);
      EXPECT_EQ(ValueOf(TryIpcLink(ground.trial)), "") << size << " ranks";
      EXPECT_EQ(rank.device.counts().operations, 2) << "launches";
      ExpectFine(ground.link->Close(kNever, nullptr));
    });
    EXPECT_EQ(host.board_count(), size);
  }
}

// Of all ranks, before any has launched something.
TEST(IpcTrial, NeedsMemoryOnAllRanks) {
  FakeIpcHost host;
  OnIpcRanks(3, host, {}, [](const IpcRank& rank) {
    Ground ground(rank);
    if (rank.rank == 2) ground.trial.prepared = Status::Internal("no memory");
    EXPECT_EQ(ValueOf(TryIpcLink(ground.trial)), "its rank 2: no memory");
    EXPECT_EQ(rank.device.counts().operations, 0);
    ExpectFine(ground.link->Close(kNever, nullptr));
  });
}

TEST(IpcTrial, IsNotForWhoHasOtherWorkThatDoesNotEnd) {
  FakeIpcHost host;
  std::atomic<bool> is_let_go = false;
  OnIpcRanks(2, host, {}, [&](const IpcRank& rank) {
    Ground ground(rank);
    ground.trial.patience = std::chrono::milliseconds(300);
    if (rank.rank == 1) {
      ExpectFine(rank.device.Enqueue(rank.stream, {.name = "other work", .work = [&] {
                                                     while (!is_let_go) std::this_thread::yield();
                                                   }}));
    }
    EXPECT_THAT(ValueOf(TryIpcLink(ground.trial)), HasSubstr("its rank 1: its GPU was busy"));
    is_let_go = true;
    ExpectFine(ground.link->Close(kNever, nullptr));
  });
}

// Of the kernel that adds up whole numbers of four bytes.
TEST(IpcTrial, KeepsAllBlocksBusy) {
  for (const int size : {2, 8}) {
    FakeIpcHost host;
    std::atomic<uint32_t> least = kMaxIpcBlocks + 1;
    host.on_done = [&](int, const IpcAllreduce& job) {
      if (job.count == 0) return;  // The farewell.
      const uint32_t blocks =
          cuda::IpcBlocksOf<int32_t>(cuda::IpcLaunchOf(job, 1), job.most_blocks);
      uint32_t before = least;
      while (blocks < before && !least.compare_exchange_weak(before, blocks)) {
      }
    };
    OnIpcRanks(size, host, {}, [](const IpcRank& rank) {
      const Ground ground(rank);
      EXPECT_EQ(ValueOf(TryIpcLink(ground.trial)), "");
      ExpectFine(ground.link->Close(kNever, nullptr));
    });
    EXPECT_EQ(least, static_cast<uint32_t>(kMaxIpcBlocks)) << size << " ranks";
  }
}

TEST(IpcTrial, DoesNotWaitForWhatNeverArrives) {
  FakeIpcHost host;
  host.has_deaf_boards = true;
  OnIpcRanks(3, host, {}, [](const IpcRank& rank) {
    Ground ground(rank);
    ground.trial.patience = std::chrono::milliseconds(300);
    EXPECT_THAT(ValueOf(TryIpcLink(ground.trial)),
                AllOf(HasSubstr("its rank 0: nothing"), HasSubstr("arrived there in time")));
    ground.link->Abort(Status::Aborted("of no use"));
    rank.Settle();
  });
}

// In one shot and in two, each with a half of the board of its own.
TEST(IpcTrial, FindsOtherNumbersOnOneRank) {
  for (const uint64_t epoch : {1, 2}) {
    FakeIpcHost host;
    host.on_done = [epoch](int device, const IpcAllreduce& job) {
      if (device != 1 || job.epoch != epoch) return;
      static_cast<int32_t*>(job.output)[job.count - 1] ^= 1;
    };
    OnIpcRanks(3, host, {}, [&](const IpcRank& rank) {
      const Ground ground(rank);
      EXPECT_THAT(ValueOf(TryIpcLink(ground.trial)),
                  AllOf(HasSubstr("its rank 1: "), HasSubstr("other numbers"),
                        HasSubstr("element " + std::to_string(kIpcTrialBytes / 4 - 2))))
          << "launch " << epoch;
      ground.link->Abort(Status::Aborted("of no use"));
      rank.Settle();
    });
  }
}

TEST(IpcTrial, NeedsEveryShotThatThereIs) {
  FakeIpcHost host;
  std::atomic<int> in_two_shots = 0;
  host.on_done = [&](int, const IpcAllreduce& job) { in_two_shots += job.in_two_shots ? 1 : 0; };
  for (const int size : {2, 4}) {
    in_two_shots = 0;
    OnIpcRanks(size, host, {}, [](const IpcRank& rank) {
      const Ground ground(rank);
      EXPECT_EQ(ValueOf(TryIpcLink(ground.trial)), "");
      ExpectFine(ground.link->Close(kNever, nullptr));
    });
    EXPECT_EQ(in_two_shots, size == 2 ? 0 : size);
  }
}

TEST(IpcTrial, EndsWhenARankIsLost) {
  FakeIpcHost host;
  host.has_deaf_boards = true;
  OnIpcRanks(2, host, {}, [](const IpcRank& rank) {
    Ground ground(rank);
    ground.trial.seat.watch = [] { return Status::PeerLost("the other one is lost"); };
    const Result<std::string> why_not = TryIpcLink(ground.trial);
    EXPECT_EQ(why_not.status().code(), StatusCode::kPeerLost);
    ground.link->Abort(why_not.status());
    rank.Settle();
  });
}

}  // namespace
}  // namespace mydist::testing
