// The trial of a link between GPUs: what does not arrive, or arrives as something else, keeps all
// ranks from it, for one reason, and nobody waits for ever.
#include "ops/device/ipc_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "device/ipc_ranks.h"

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
              .pinned = pinned.get()} {}

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

TEST(IpcTrial, DoesNotWaitForWhatNeverArrives) {
  FakeIpcHost host;
  host.has_deaf_boards = true;
  OnIpcRanks(3, host, {}, [](const IpcRank& rank) {
    Ground ground(rank);
    ground.trial.patience = std::chrono::milliseconds(600);
    EXPECT_THAT(ValueOf(TryIpcLink(ground.trial)),
                AllOf(HasSubstr("its rank 0: nothing"), HasSubstr("arrived there within 1 s")));
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
    ground.trial.patience = std::chrono::hours(1);
    ground.trial.seat.watch = [] { return Status::PeerLost("the other one is lost"); };
    const Result<std::string> why_not = TryIpcLink(ground.trial);
    EXPECT_EQ(why_not.status().code(), StatusCode::kPeerLost);
    ground.link->Abort(why_not.status());
    rank.Settle();
  });
}

}  // namespace
}  // namespace mydist::testing
