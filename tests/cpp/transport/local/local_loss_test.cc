// What the survivors on a host hear of a rank that is gone.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <fstream>
#include <latch>

#include "algorithms/shm/refused_calls.h"
#include "conformance/control_plane_suite.h"
#include "transport/local/local_control_plane.h"
#include "transport/local/local_jobs.h"
#include "transport/local/peer_watcher.h"

namespace mydist::local {
namespace {

using conformance::Correspondent;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kSize = 4;

// The product's bound is a second. Here the ends of the processes count as well, on a machine that
// may be busy; who is not told waits for half a minute (Soon) or for ever.
constexpr std::chrono::seconds kBound{5};

void ExpectDeathOf(int rank, const Status& status) {
  EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.ToString();
  EXPECT_THAT(status.message(), AllOf(StartsWith("rank " + std::to_string(rank) + " (host h, pid "),
                                      HasSubstr("has died")));
}

// The last rank is killed when all have reported; survivors hear of it soon.
void KillTheLast(const std::function<void(Correspondent& me, LocalRank& rank)>& as_survivor,
                 const std::function<void(Correspondent& me)>& as_victim) {
  const shm::ShmDirectory directory;
  shm::ForkedRanks ranks(
      kSize, AsRank(kSize, directory, [&](LocalRank& rank, const shm::ForkedRanks::Seat& seat) {
        Correspondent me(rank.connection);
        me.Synchronize();
        seat.report();
        if (seat.rank == kSize - 1) {
          as_victim(me);
          pause();
        }
        as_survivor(me, rank);
        ExpectDeathOf(kSize - 1, me.plane().Close(Soon()));
      }));
  ranks.AwaitReports(kSize);
  const TimePoint killed = Now();
  ranks.Kill(kSize - 1);
  for (int rank = 0; rank < kSize - 1; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
  EXPECT_LT(Now() - killed, kBound);
  EXPECT_TRUE(directory.IsEmpty());
}

TEST(LocalLoss, AKilledRankIsReportedOnceByEverySurvivorThatIsIdle) {
  KillTheLast(
      [](Correspondent& me, LocalRank&) {
        ExpectDeathOf(kSize - 1, me.AwaitLoss());
        ExpectDeathOf(kSize - 1, me.plane().Send(kSize - 1, {1}));
        ExpectDeathOf(kSize - 1, me.plane().CheckPeer(kSize - 1));
        // The survivors can still talk, and nothing is reported twice.
        if (me.rank() < 2) {
          me.Send(1 - me.rank(), {9});
          EXPECT_EQ(me.ReceiveFrom(1 - me.rank()), Bytes{9});
        }
      },
      [](Correspondent&) {});
}

// Half of a message is none.
TEST(LocalLoss, AKilledRankIsReportedByThoseItWasSendingTo) {
  KillTheLast(
      [](Correspondent& me, LocalRank&) { ExpectDeathOf(kSize - 1, AwaitLoss(me.plane())); },
      [](Correspondent& me) {
        for (;;) {
          for (int peer = 0; peer < kSize - 1; ++peer) me.Send(peer, Bytes(50'000));
        }
      });
}

TEST(LocalLoss, ACallerThatAttendsHearsOfItAsWell) {
  KillTheLast(
      [](Correspondent& me, LocalRank&) {
        me.plane().Attend(true);
        Status status;
        for (const TimePoint limit = Soon(); status.ok() && Now() < limit;) {
          const auto got = me.plane().Receive();
          if (!got.ok()) status = got.status();
        }
        ExpectDeathOf(kSize - 1, status);
        me.plane().Attend(false);
      },
      [](Correspondent&) {});
}

TEST(LocalLoss, ARankThatGoesWithoutAGoodbyeIsNamed) {
  OnThreads(3, [](LocalRank& rank) {
    if (rank.connection.rank == 2) {
      for (uint8_t i = 0; i < 20; ++i) ExpectOk(rank.plane().Send(i % 2, {i}));
      rank.connection.control.reset();
      return;
    }
    // What it sent comes first.
    for (auto i = static_cast<uint8_t>(rank.connection.rank); i < 20; i += 2) {
      ExpectMessage(rank, {2, {i}});
    }
    const Status lost = AwaitLoss(rank.plane());
    EXPECT_EQ(lost.code(), StatusCode::kPeerLost);
    EXPECT_THAT(lost.message(), AllOf(StartsWith("rank 2 (host h, pid "),
                                      HasSubstr("closed its connection without a goodbye")));
    EXPECT_EQ(rank.plane().Close(Soon()).code(), StatusCode::kPeerLost);
  });
}

// Rank 1 has left because rank 2 died; who speaks to rank 1 first must not blame it.
TEST(LocalLoss, TheCauseIsBlamedAndNotWhoLeftBecauseOfIt) {
  const shm::ShmDirectory directory;
  shm::ForkedRanks ranks(3, AsRank(3, directory, [](LocalRank& rank, const auto& seat) {
                           ASSERT_TRUE(seat.exchange({}).ok());
                           if (seat.rank == 2) _exit(7);
                           if (seat.rank == 1) {
                             EXPECT_EQ(AwaitLoss(rank.plane()).code(), StatusCode::kPeerLost);
                             EXPECT_EQ(rank.plane().Close(Soon()).code(), StatusCode::kPeerLost);
                             seat.report();
                             return;
                           }
                           const ControlMemory memory(rank.port->arena().control_memory(), 3);
                           while (memory.line(1).state.load() == PlaneState::kOpen)
                             std::this_thread::yield();
                           const Status sent = rank.plane().Send(1, {1});
                           ExpectDeathOf(2, sent);
                         }));
  EXPECT_EQ(ranks.Wait(2), 7);
  EXPECT_EQ(ranks.Wait(1), 0);
  EXPECT_EQ(ranks.Wait(0), 0);
}

class PeerWatcherWhere : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(PidfdsAre, PeerWatcherWhere, ::testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "Offered" : "Refused");
});

TEST_P(PeerWatcherWhere, TellsThatAProcessHasEnded) {
  const bool has_pidfds = GetParam();
  const shm::ShmDirectory directory;
  shm::ForkedRanks ranks(2, [&](const shm::ForkedRanks::Seat& seat) {
    const auto port = shm::OpenPort(shm::OptionsOf(seat.rank, 2, directory), seat.exchange);
    ASSERT_NE(port, nullptr);
    if (seat.rank == 1) {
      ASSERT_TRUE(seat.exchange({}).ok());
      _exit(7);
    }
    if (!has_pidfds) shm::Refuse(SYS_pidfd_open, EPERM);  // As in some containers.
    std::latch has_ended(1);
    const auto watcher = PeerWatcher::Start(&port->arena(), [&](int peer) {
      EXPECT_EQ(peer, 1);
      has_ended.count_down();
    });
    ASSERT_TRUE(watcher.ok()) << watcher.status().ToString();
    EXPECT_EQ((*watcher)->IsEventDriven(), has_pidfds);
    ASSERT_TRUE(seat.exchange({}).ok());
    const TimePoint start = Now();
    has_ended.wait();
    EXPECT_LT(Now() - start, kBound);
  });
  EXPECT_EQ(ranks.Wait(1), 7);
  EXPECT_EQ(ranks.Wait(0), 0);
}

// This process's descriptor for that one.
int PidfdOf(pid_t pid) {
  for (int fd = 0; fd < 1024; ++fd) {
    std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd));
    for (std::string line; std::getline(info, line);) {
      if (line == "Pid:\t" + std::to_string(pid)) return fd;
    }
  }
  return -1;
}

// As by a program that closes all descriptors it does not know: of rank 1 nothing can be told.
void LoseThePidfdOf(pid_t pid) {
  const int other = open("/", O_PATH | O_CLOEXEC);
  const int pidfd = PidfdOf(pid);
  ASSERT_GE(pidfd, 0);
  ASSERT_EQ(dup2(other, pidfd), pidfd);
  close(other);
}

// The watcher looks at it when ranks 3 and 2 have ended, and goes on to tell of rank 1.
TEST(PeerWatcherTest, ADescriptorThatIsLostIsNoDeath) {
  constexpr int kRanks = 4;
  const shm::ShmDirectory directory;
  shm::ForkedRanks ranks(kRanks, [&](const shm::ForkedRanks::Seat& seat) {
    const auto port = shm::OpenPort(shm::OptionsOf(seat.rank, kRanks, directory), seat.exchange);
    ASSERT_NE(port, nullptr);
    ASSERT_TRUE(seat.exchange({}).ok());
    if (seat.rank != 0) pause();
    std::array<std::latch, kRanks> has_ended{std::latch(1), std::latch(1), std::latch(1),
                                             std::latch(1)};
    std::atomic<int> next = kRanks - 1;
    const auto watcher = PeerWatcher::Start(&port->arena(), [&](int peer) {
      EXPECT_EQ(peer, next.load()) << "nobody else has been killed";
      has_ended[static_cast<size_t>(peer)].count_down();
    });
    ASSERT_TRUE(watcher.ok()) << watcher.status().ToString();
    LoseThePidfdOf(*port->arena().LockHolder(1));
    for (int peer = kRanks - 1; peer > 0; --peer) {
      next.store(peer);
      seat.report();
      has_ended[static_cast<size_t>(peer)].wait();
    }
  });
  for (int peer = kRanks - 1; peer > 0; --peer) {
    ranks.AwaitReports(1);
    ranks.Kill(peer);
  }
  EXPECT_EQ(ranks.Wait(0), 0);
}

}  // namespace
}  // namespace mydist::local
