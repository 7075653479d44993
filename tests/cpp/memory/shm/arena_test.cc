// The arena: how it is made, why not, and what survivors hear of a rank that is gone.
#include "memory/shm/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <string>
#include <thread>

#include "algorithms/shm/shm_collectives.h"
#include "algorithms/shm/shm_ranks.h"
#include "base/clock.h"
#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"
#include "memory/shm/waiter.h"
#include "world/departure.h"

namespace mydist::shm {
namespace {

using std::string_literals::operator""s;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

// What Establish says to each of `size` ranks; `options_of` and `exchange_of` may differ.
std::vector<Arena::Establishment> EstablishAll(
    int size, const std::function<ArenaOptions(int rank)>& options_of,
    const std::function<ArenaExchange(int rank, ArenaExchange exchange)>& exchange_of) {
  InMemoryRendezvous rendezvous(size);
  std::vector<Arena::Establishment> outcomes(static_cast<size_t>(size));
  RunAsRanks(size, [&](int rank) {
    auto outcome = Arena::Establish(options_of(rank), exchange_of(rank, rendezvous.ForRank(rank)));
    ExpectOk(outcome.status());
    if (outcome.ok()) outcomes[static_cast<size_t>(rank)] = *std::move(outcome);
  });
  return outcomes;
}

ArenaExchange Unchanged(int, ArenaExchange exchange) { return exchange; }

// How many files in the directory rank 0 sees between the rounds, all of them private.
int NamesSeen(const ShmDirectory& directory, bool sees_processes) {
  std::atomic<int> seen = 0;
  const auto outcomes = EstablishAll(
      3,
      [&](int rank) {
        ArenaOptions options = OptionsOf(rank, 3, directory);
        options.sees_processes = sees_processes || rank != 1;
        return options;
      },
      [&](int rank, ArenaExchange exchange) -> ArenaExchange {
        return [&, rank, exchange](const Bytes& mine) {
          for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
            struct stat info {};
            if (rank != 0 || stat(entry.path().c_str(), &info) != 0) continue;
            EXPECT_EQ(info.st_mode & 0777U, 0600U);
            EXPECT_EQ(info.st_uid, geteuid());
            ++seen;
          }
          return exchange(mine);
        };
      });
  for (const auto& outcome : outcomes) EXPECT_NE(outcome.arena, nullptr) << outcome.reason;
  EXPECT_TRUE(directory.IsEmpty());
  return seen;
}

// So whoever is killed, whenever, nothing stays.
TEST(Arena, HasNoNameAtAnyTime) { EXPECT_EQ(NamesSeen(ShmDirectory(), true), 0); }

TEST(Arena, HasANameWhileThatIsTheOnlyWay) { EXPECT_GE(NamesSeen(ShmDirectory(), false), 1); }

// Where all see each other there is none, whatever another host needs.
TEST(Arena, HasANameOnlyOnTheHostThatAsksForIt) {
  const ShmDirectory asks;
  const ShmDirectory does_not;
  std::array<std::atomic<int>, 2> seen{};
  const auto outcomes = EstablishAll(
      4,
      [&](int rank) {
        ArenaOptions options = OptionsOf(rank % 2, 2, rank < 2 ? does_not : asks);
        if (rank >= 2) options.ranks = {2, 3};
        options.sees_processes = rank != 3;
        return options;
      },
      [&](int rank, ArenaExchange exchange) -> ArenaExchange {
        return [&, rank, exchange](const Bytes& mine) {
          if (rank == 2 && !asks.IsEmpty()) ++seen[0];
          if (rank == 0 && !does_not.IsEmpty()) ++seen[1];
          return exchange(mine);
        };
      });
  for (const auto& outcome : outcomes) {
    EXPECT_NE(outcome.arena, nullptr) << outcome.reason;
    EXPECT_TRUE(outcome.is_everywhere);
  }
  EXPECT_EQ(seen[0], 2);
  EXPECT_EQ(seen[1], 0);
  EXPECT_TRUE(asks.IsEmpty() && does_not.IsEmpty());
}

TEST(Arena, WithoutRoomSaysWhatIsNeededAndFree) {
  const ShmDirectory directory;
  const auto outcomes = EstablishAll(
      2, [&](int rank) { return OptionsOf(rank, 2, directory, int64_t{1} << 44); }, Unchanged);
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.arena, nullptr);
    EXPECT_THAT(outcome.reason, StartsWith("rank 0: " + directory.path() + " has no room"));
    EXPECT_THAT(outcome.reason, HasSubstr("needed 7036874"));
    EXPECT_THAT(outcome.reason, HasSubstr(" bytes, free "));
  }
  EXPECT_TRUE(directory.IsEmpty());
}

TEST(Arena, WithoutDirectorySaysSo) {
  const auto outcomes = EstablishAll(
      2,
      [](int rank) {
        const ShmDirectory gone;
        return OptionsOf(rank, 2, gone);
      },
      Unchanged);
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.arena, nullptr);
    EXPECT_THAT(outcome.reason, HasSubstr("No such file or directory"));
  }
}

// Two hosts of two ranks; what the second one lacks the first one hears of.
TEST(Arena, AllKnowWhetherEveryHostHasOne) {
  const auto on_hosts = [](const ShmDirectory& first, const std::string& second) {
    const auto outcomes = EstablishAll(
        4,
        [&](int rank) {
          ArenaOptions options = OptionsOf(rank % 2, 2, first);
          if (rank < 2) return options;
          options.ranks = {2, 3};
          options.directory = second;
          return options;
        },
        Unchanged);
    for (const auto& outcome : outcomes) {
      EXPECT_EQ(outcome.is_everywhere, outcomes.front().is_everywhere);
    }
    EXPECT_NE(outcomes.front().arena, nullptr);
    return outcomes.front().is_everywhere;
  };
  const ShmDirectory here;
  const ShmDirectory there;
  EXPECT_TRUE(on_hosts(here, there.path()));
  EXPECT_FALSE(on_hosts(here, "/nowhere"));
}

TEST(Arena, NotSharedBetweenContainersIsRefusedByAll) {
  const ShmDirectory here;
  const ShmDirectory there;
  const auto outcomes = EstablishAll(
      3,
      [&](int rank) {
        ArenaOptions options = OptionsOf(rank, 3, rank == 1 ? there : here);
        options.sees_processes = false;
        return options;
      },
      Unchanged);
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.arena, nullptr);
    EXPECT_THAT(outcome.reason, StartsWith("rank 1: "));
    EXPECT_THAT(outcome.reason, MatchesRegex(".*separate containers.*: "
                                             "needed [0-9]{5,} bytes, free [0-9]+: .*"));
  }
  EXPECT_TRUE(here.IsEmpty() && there.IsEmpty());
}

// The first rank's offers, both of them, reach rank 1 with `change` made to them.
std::vector<Arena::Establishment> EstablishWithChangedOffer(
    const ShmDirectory& directory, const std::function<void(Bytes&)>& change) {
  return EstablishAll(
      2, [&](int rank) { return OptionsOf(rank, 2, directory); },
      [&](int rank, ArenaExchange exchange) -> ArenaExchange {
        return [&, rank, exchange, round = 0](const Bytes& mine) mutable {
          auto answer = exchange(mine);
          const bool is_offer = round == 0 || (round == 2 && (*answer)[0].size() > 1);
          ++round;
          if (is_offer && rank == 1) change((*answer)[0]);
          return answer;
        };
      });
}

TEST(Arena, WithAnotherCookieIsRefused) {
  const ShmDirectory directory;
  const auto outcomes =
      EstablishWithChangedOffer(directory, [](Bytes& offer) { offer.back() ^= 1; });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.arena, nullptr);
    EXPECT_THAT(outcome.reason, MatchesRegex(".* is not the one that rank 0 made .*: "
                                             "needed [0-9]{5,} bytes, free [0-9]+"));
  }
  EXPECT_TRUE(directory.IsEmpty());
}

TEST(Arena, WhatIsNoOfferIsRefused) {
  const ShmDirectory directory;
  const std::string name = "mydist-" + std::string(32, 'a');
  const std::string cookie(16, 'c');
  const auto expect_refused = [&](const std::string& what, std::function<void(Bytes&)> change) {
    for (const auto& outcome : EstablishWithChangedOffer(directory, change)) {
      EXPECT_EQ(outcome.arena, nullptr) << what;
      EXPECT_THAT(outcome.reason, StartsWith("rank 1: ")) << what;
    }
    EXPECT_TRUE(directory.IsEmpty());
  };
  for (const std::string address :
       {"", "/etc/passwd", "../../etc/passwd", "mydist-12", name.c_str(), "1/", "/1", "1/2/3",
        "1/-1", "-1/1", "99999999999/1", "1\n1", "1\n\n"}) {
    expect_refused(address, [&](Bytes& bytes) {
      const auto end = std::find(bytes.begin(), bytes.end(), '\n');
      bytes.insert(bytes.erase(bytes.begin() + 1, end), address.begin(), address.end());
    });
  }
  for (const std::string& offer :
       {std::string(), "y"s, "z"s, "y\n"s, "y1/1\nname\n" + cookie,
        "y1/1\n../../etc/passwd\n" + cookie, "y1/1\n" + name + "\n" + cookie + "c"}) {
    expect_refused(offer, [&](Bytes& bytes) { bytes.assign(offer.begin(), offer.end()); });
  }
}

// With a name, which takes more rounds.
TEST(Arena, AFailingExchangeLeavesNothingBehind) {
  for (int failing = 0; failing < 5; ++failing) {
    const ShmDirectory directory;
    InMemoryRendezvous rendezvous(2);
    RunAsRanks(2, [&](int rank) {
      const ArenaExchange fails = [&, exchange = rendezvous.ForRank(rank),
                                   round = 0](const Bytes& mine) mutable {
        auto answer = exchange(mine);
        if (round++ == failing) answer = Status::PeerLost("the store is gone");
        return answer;
      };
      ArenaOptions options = OptionsOf(rank, 2, directory);
      options.sees_processes = false;
      const auto outcome = Arena::Establish(options, fails);
      EXPECT_EQ(outcome.status().code(), StatusCode::kPeerLost);
    });
    EXPECT_TRUE(directory.IsEmpty());
  }
}

TEST(Arena, OpensNothingButFilesOfPeers) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const std::string address = std::to_string(getpid()) + "/" + std::to_string(ends[0]);
  const auto file = ArenaFile::Open("/dev/shm", address, kPageBytes);
  EXPECT_THAT(file.status().message(), HasSubstr("are the ranks in separate containers?"));
  for (const int end : ends) close(end);
}

TEST(ArenaFile, WithoutNameSaysWhatIsNeededAndFree) {
  const ShmDirectory directory;
  const auto made = ArenaFile::CreateNameless(directory.path(), kPageBytes);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  ASSERT_TRUE((*made)->GiveName("taken").ok());
  EXPECT_THAT(
      (*made)->GiveName("taken").message(),
      MatchesRegex(
          "cannot give shared memory in .* a name: needed [0-9]+ bytes, free [0-9]+: File exists"));
}

class KilledShmRank : public ::testing::TestWithParam<bool> {};

// The last rank is killed while it reduces, or while the others wait for it. The product's bound is
// a second. Here the ends of the processes count as well, on a machine that may be busy; who is not
// told waits for ever.
TEST_P(KilledShmRank, IsReportedByEverySurvivorWithinSeconds) {
  constexpr int kSize = 4;
  const bool victim_reduces = GetParam();
  const ShmDirectory directory;
  ForkedRanks ranks(kSize, [&](const ForkedRanks::Seat& seat) {
    const auto port = OpenPort(OptionsOf(seat.rank, kSize, directory), seat.exchange);
    ASSERT_NE(port, nullptr);
    ShmCollectives collectives(port.get(), {0, 1, 2, 3});
    std::vector<float> data(100000, 1);
    const auto count = static_cast<int64_t>(data.size());
    ExpectOk(collectives.Allreduce(data.data(), count, {}));
    seat.report();
    if (seat.rank == kSize - 1 && !victim_reduces) pause();
    Status status;
    while (status.ok()) status = collectives.Allreduce(data.data(), count, {});
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.ToString();
    EXPECT_THAT(status.message(), StartsWith("rank 3 (host h, pid "));
    EXPECT_THAT(status.message(), HasSubstr("has died during a collective in shared memory"));
  });
  ranks.AwaitReports(kSize);
  const TimePoint killed = Now();
  ranks.Kill(kSize - 1);
  for (int rank = 0; rank < kSize - 1; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
  EXPECT_LT(Now() - killed, std::chrono::seconds(5));
  EXPECT_TRUE(directory.IsEmpty());
}
INSTANTIATE_TEST_SUITE_P(While, KilledShmRank, ::testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "ItReduces" : "OthersWait");
});

// The bell of who waits never rests, as when others move a lot of bytes meanwhile.
TEST(Arena, ADeadRankIsNoticedAmongOthersThatAreBusy) {
  BesideAPausedRank(true, [](ShmPort& port) {
    Waiter waiter(&port.arena());
    const int dead = 1;
    const TimePoint deadline = Now() + std::chrono::seconds(3);
    const Status status = waiter.Await({{&dead, 1}, {&dead, 1}}, [&] {
      RingBell(port.arena().bell(0));
      return Now() >= deadline;
    });
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  });
}

// One that sleeps and takes no part would be woken for every piece that moves.
TEST(ShmTransport, RingsThoseWhoTakePart) {
  std::barrier<> all(3);
  OnThreadsWithPort(3, kSmallSlot, [&](ShmPort& port, int rank) {
    RankLine& bystander = port.arena().rank_line(0);
    if (rank == 0) bystander.asleep.store(1);
    all.arrive_and_wait();
    const uint8_t sent = 7;
    uint8_t got = 0;
    const SendTransfer send{2, &sent, 1};
    const ReceiveTransfer receive{1, &got, 1};
    if (rank == 1) ExpectOk(port.transport().Exchange({&send, 1}, {}));
    if (rank == 2) ExpectOk(port.transport().Exchange({}, {&receive, 1}));
    all.arrive_and_wait();
    if (rank == 0) EXPECT_EQ(port.arena().bell(0).rings.load(), 0U);
    all.arrive_and_wait();
  });
}

TEST(Arena, WhatARankHasCompletedLastIsKnownToItsPeers) {
  OnThreadsWithPort(2, kSmallSlot, [](ShmPort& port, int rank) {
    ShmCollectives collectives(&port, {0, 1});
    DoneLine& line = port.arena().done_line(1);
    if (rank == 0) EXPECT_EQ(ReadDone(line), LastDone());
    ExpectOk(collectives.Barrier());
    const std::string longest(DoneLine::kNameWords * 8, 'x');
    if (rank == 1) WriteDone(line, 3, 12, longest + "cut");
    ExpectOk(collectives.Barrier());
    if (rank == 0) EXPECT_EQ(ReadDone(line), (LastDone{3, 12, longest, 1}));
    ExpectOk(collectives.Barrier());
    if (rank == 1) WriteDone(line, 4, 13, "short name");
    ExpectOk(collectives.Barrier());
    if (rank == 0) EXPECT_EQ(ReadDone(line), (LastDone{4, 13, "short name", 2}));
  });
}

// Its rank may die at any moment, and a broken one may write anything.
TEST(Arena, WhatARankWasAboutToWriteWhenItDiedIsNotRead) {
  DoneLine line{};
  WriteDone(line, 3, 12, "name");
  line.version.store(line.version.load() + 1);
  EXPECT_FALSE(ReadDone(line));
  line.version.store(line.version.load() + 1);
  line.op_and_length.store(~uint64_t{0});
  ASSERT_TRUE(ReadDone(line));
  EXPECT_EQ(ReadDone(line)->name.size(), DoneLine::kNameWords * 8);
}

TEST(Arena, ARankThatLeavesIsNamed) {
  OnThreadsWithPort(3, kSmallSlot, [](ShmPort& port, int rank) {
    if (rank == 2) return port.Leave("");
    ShmCollectives collectives(&port, {0, 1, 2});
    const Status status = collectives.Barrier();
    ExpectError(status, StatusCode::kPeerLost,
                {"has left the job while other ranks still need it"});
  });
}

// Also to those who only follow one that followed it, with its own rank, and no more than fits.
TEST(Arena, ARankThatLeavesGivesItsReason) {
  const std::string why = "the disk is full" + std::string(2 * kLastWordsBytes, '!');
  OnThreadsWithPort(3, kSmallSlot, [&](ShmPort& port, int rank) {
    if (rank == 2) return port.Leave(why);
    const uint8_t sent = 7;
    uint8_t got = 0;
    const ReceiveTransfer receive{rank + 1, &got, 1};
    const SendTransfer send{1, &sent, 1};
    const Status status = rank == 0 ? port.transport().Exchange({&send, 1}, {&receive, 1})
                                    : port.transport().Exchange({}, {&receive, 1});
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.ToString();
    EXPECT_THAT(status.message(), MatchesRegex("rank 2 \\(host .*\\) has left the job: the disk is "
                                               "full!+"));
    EXPECT_LE(status.message().size(), kLastWordsBytes + 100);
    port.Leave(FarewellWords(status));
    port.Leave("too late");
  });
}

// Its bytes are there, so nobody misses it.
TEST(Arena, ARankThatLeavesAfterItsPartIsNotMissed) {
  std::atomic<bool> has_left = false;
  OnThreadsWithPort(3, kSmallSlot, [&](ShmPort& port, int rank) {
    const uint8_t sent = 7;
    if (rank == 0) {
      const SendTransfer send{1, &sent, 1};
      ExpectOk(port.transport().Exchange({&send, 1}, {}));
      port.Leave("");
      has_left = true;
      has_left.notify_all();
    } else if (rank == 2) {
      has_left.wait(false);
      const SendTransfer send{1, &sent, 1};
      ExpectOk(port.transport().Exchange({&send, 1}, {}));
    } else {
      std::array<uint8_t, 2> got{};
      const ReceiveTransfer receives[] = {{2, &got[0], 1}, {0, &got[1], 1}};
      ExpectOk(port.transport().Exchange({}, receives));
      EXPECT_THAT(got, ::testing::ElementsAre(7, 7));
    }
  });
}

// What a peer says of its rings is not believed.
TEST(ShmTransport, CountersThatCannotBeAreRefused) {
  for (const bool sends : {false, true}) {
    std::barrier<> both(2);
    OnThreadsWithPort(2, kSmallSlot, [&](ShmPort& port, int rank) {
      const auto ring_bytes = static_cast<uint64_t>(port.arena().layout().ring_bytes());
      PairLine& line = port.arena().pair(1, 0);
      if (rank == 1) {
        if (sends) line.consumed.store(uint64_t{0} - ring_bytes - 1);
        if (!sends) line.produced.store(ring_bytes + 1);
        return both.arrive_and_wait();
      }
      both.arrive_and_wait();
      std::array<uint8_t, 100> bytes{};
      const SendTransfer send{1, bytes.data(), bytes.size()};
      const ReceiveTransfer receive{1, bytes.data(), bytes.size()};
      const Status status = sends ? port.transport().Exchange({&send, 1}, {})
                                  : port.transport().Exchange({}, {&receive, 1});
      EXPECT_EQ(status.code(), StatusCode::kInternal);
      EXPECT_THAT(status.message(), StartsWith("rank 1 (host h, pid "));
      EXPECT_THAT(status.message(), HasSubstr("than fit into it (8192)"));
    });
  }
}

// The kernel has no answer any more: the descriptor means another file.
TEST(ArenaFile, OnlyTheKernelSaysThatNobodyHoldsALock) {
  const ShmDirectory directory;
  const auto made = ArenaFile::CreateNameless(directory.path(), kPageBytes);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const std::string address = (*made)->ProcAddress();
  EXPECT_EQ((*made)->LockHolder(0), std::nullopt);
  const int root = open("/", O_PATH | O_CLOEXEC);
  ASSERT_GE(dup2(root, std::stoi(address.substr(address.find('/') + 1))), 0);
  close(root);
  EXPECT_EQ((*made)->LockHolder(0), 0);
}

class ShmTransportRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShmTransportRanks, ::testing::ValuesIn(Ranks(2, 4)));

TEST_P(ShmTransportRanks, PassTheConformanceSuites) {
  OnThreadsWithPort(GetParam(), kSmallSlot, [](ShmPort& port, int) {
    testing::RunTransportConformance(port.transport());
    testing::RunEveryCollective(port.transport());
  });
}

}  // namespace
}  // namespace mydist::shm
