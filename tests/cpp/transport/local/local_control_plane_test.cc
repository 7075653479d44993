// What the plane over shared memory does beyond the conformance suite: rings that are full, long
// messages, nonsense from a peer, and doing nothing while there is nothing to do.
#include "transport/local/local_control_plane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <limits>
#include <map>

#include "memory/shm/waiter.h"
#include "transport/local/local_jobs.h"

namespace mydist::local {
namespace {

Bytes Numbered(int number, size_t bytes) { return Bytes(bytes, static_cast<uint8_t>(number)); }

TEST(LocalControlPlane, KeepsWhatDoesNotFitInOrder) {
  constexpr int kMessages = 400;
  std::atomic<bool> has_sent = false;
  OnThreads(3, [&](LocalRank& rank) {
    if (rank.connection.rank == 0) {
      for (int i = 0; i < kMessages; ++i) {
        ExpectOk(rank.plane().Send(1, Numbered(i, 1000 + static_cast<size_t>(i))));
      }
      // A full ring is no reason not to reach somebody else.
      ExpectOk(rank.plane().Send(2, {42}));
      has_sent = true;
      has_sent.notify_all();
      ExpectMessage(rank, {1, {1}});
    } else if (rank.connection.rank == 2) {
      ExpectMessage(rank, {0, {42}});
    } else {
      has_sent.wait(false);
      for (int i = 0; i < kMessages; ++i) {
        ExpectMessage(rank, {0, Numbered(i, 1000 + static_cast<size_t>(i))});
      }
      ExpectOk(rank.plane().Send(0, {1}));
    }
    ExpectOk(rank.plane().Close(Soon()));
  });
}

// The longest message, both ways at once; one byte more is refused.
TEST(LocalControlPlane, CarriesTheLongestMessage) {
  OnThreads(2, [](LocalRank& rank) {
    const int peer = 1 - rank.connection.rank;
    const Status too_long = rank.plane().Send(peer, Bytes(kMaxControlMessageBytes + 1));
    ExpectError(too_long, StatusCode::kInternal, {"67108865", "67108864"});
    ExpectOk(rank.plane().Send(peer, Numbered(5 + rank.connection.rank, kMaxControlMessageBytes)));
    ExpectMessage(rank, {peer, Numbered(5 + peer, kMaxControlMessageBytes)});
    ExpectOk(rank.plane().Close(Soon()));
  });
}

// A word written before the nudge is seen by who is woken by it, asleep by then or not yet.
TEST(LocalControlPlane, ANudgeEndsTheWaitOfAPeer) {
  constexpr int kRounds = 2000;
  std::atomic<int> word = 0;
  std::atomic<int> answer = 0;
  OnThreads(2, [&](LocalRank& rank) {
    for (int round = 1; round <= kRounds; ++round) {
      std::atomic<int>& mine = rank.connection.rank == 0 ? word : answer;
      const std::atomic<int>& theirs = rank.connection.rank == 0 ? answer : word;
      if (rank.connection.rank == 0) {
        mine.store(round, std::memory_order_relaxed);
        rank.plane().Nudge(1);
      }
      while (theirs.load(std::memory_order_relaxed) < round) {
        const TimePoint limit = Soon();
        rank.plane().Await(limit);
        ASSERT_LT(Now(), limit) << "not woken in round " << round;
      }
      if (rank.connection.rank == 1) {
        mine.store(round, std::memory_order_relaxed);
        rank.plane().Nudge(0);
      }
    }
    ExpectOk(rank.plane().Close(Soon()));
  });
}

// Both have more to send than fits and nobody receives any more.
TEST(LocalControlPlane, CloseTakesWhatPeersStillSend) {
  OnThreads(2, [](LocalRank& rank) {
    ExpectOk(rank.plane().Send(1 - rank.connection.rank, Numbered(1, 4 << 20)));
    ExpectOk(rank.plane().Close(Soon()));
  });
}

TEST(LocalControlPlane, CloseGivesUpAtItsDeadline) {
  std::atomic<bool> is_over = false;
  OnThreads(2, [&](LocalRank& rank) {
    if (rank.connection.rank == 1) return is_over.wait(false);
    ExpectOk(rank.plane().Send(1, Numbered(1, 4 << 20)));
    const Status closed = rank.plane().Close(Now() + std::chrono::milliseconds(20));
    ExpectError(closed, StatusCode::kTimeout, {"did not read all control messages in time"});
    is_over = true;
    is_over.notify_all();
  });
}

TEST(LocalControlPlane, SaysThatARankHasLeft) {
  std::atomic<bool> has_left = false;
  OnThreads(2, [&](LocalRank& rank) {
    if (rank.connection.rank == 1) {
      ExpectOk(rank.plane().CheckPeer(0));
      ExpectOk(rank.plane().Send(0, {1}));
      ExpectOk(rank.plane().Close(Soon()));
      has_left = true;
      return has_left.notify_all();
    }
    has_left.wait(false);
    ExpectMessage(rank, {1, {1}});
    EXPECT_FALSE((*rank.plane().Receive()).has_value()) << "a goodbye is no loss";
    const Status sent = rank.plane().Send(1, {1});
    ExpectError(sent, StatusCode::kPeerLost, {"rank 1 (host h, pid ", "has left"});
    EXPECT_EQ(rank.plane().CheckPeer(1).ToString(), sent.ToString());
    ExpectOk(rank.plane().Close(Soon()));
  });
}

// What rank 0 hears when rank 1 has put nonsense into memory; `damage` gets rank 1's view of it.
Status AfterDamage(const std::function<void(const ControlMemory& memory)>& damage) {
  Status heard;
  std::atomic<bool> is_over = false;
  OnThreads(2, [&](LocalRank& rank) {
    if (rank.connection.rank == 1) {
      damage({rank.port->arena().control_memory(), 2});
      shm::RingBell(ControlMemory(rank.port->arena().control_memory(), 2).news_bell(0));
      is_over.wait(false);
    } else {
      heard = AwaitLoss(rank.plane());
      EXPECT_FALSE((*rank.plane().Receive()).has_value()) << "an error is reported once";
      is_over = true;
      is_over.notify_all();
    }
    ExpectOk(rank.plane().Close(Soon()));
  });
  return heard;
}

void PutHeader(const ControlMemory& memory, const MessageHeader& header) {
  std::memcpy(memory.ring(1, 0).data(), &header, sizeof header);
  memory.pair(1, 0).produced.store(sizeof header);
}

TEST(LocalControlPlane, NamesThePeerThatSendsNonsense) {
  const Status magic = AfterDamage([](const auto& memory) { PutHeader(memory, {1234, 1}); });
  ExpectError(magic, StatusCode::kInternal,
              {"rank 1 (host h, pid ", "sent data through shared memory that is not a"});
  const Status length = AfterDamage([](const auto& memory) {
    PutHeader(memory, {kMessageMagic, 0xffffffff});
  });
  ExpectError(length, StatusCode::kInternal,
              {"rank 1 (host h, pid ", "4294967295", "expected at most 67108864"});
  const Status counter =
      AfterDamage([](const auto& memory) { memory.pair(1, 0).produced.store(uint64_t{1} << 40); });
  ExpectError(counter, StatusCode::kInternal,
              {"rank 1 (host h, pid ", "wrote 1099511627776 bytes"});
}

// Two ranks' control memory without an arena.
class PlainMemory {
 public:
  ControlMemory view() {
    void* memory = storage_.data();
    size_t room = storage_.size();
    std::align(shm::kLineBytes, static_cast<size_t>(ControlMemory::Bytes(2)), memory, room);
    return {static_cast<uint8_t*>(memory), 2};
  }

 private:
  Bytes storage_ = Bytes(static_cast<size_t>(ControlMemory::Bytes(2)) + shm::kLineBytes);
};

// Else Close would wait for it.
TEST(Outbox, KeepsNothingForThoseThatAreDead) {
  PlainMemory memory;
  Outbox outbox(memory.view(), 0, [] {});
  ExpectOk(outbox.Send(1, Bytes(1 << 20)));
  EXPECT_FALSE(outbox.IsEmpty());
  outbox.Abandon(1);
  EXPECT_TRUE(outbox.IsEmpty());
  ExpectOk(outbox.Send(1, Bytes(1 << 20)));
  EXPECT_TRUE(outbox.IsEmpty());
}

// A peer may say goodbye and end before the courier runs; then nobody but Abandon can tell Close.
TEST(Outbox, TellsWhenTheLastThatWasKeptIsAbandoned) {
  PlainMemory memory;
  std::atomic<int> empty_count = 0;
  Outbox outbox(memory.view(), 0, [&] { ++empty_count; });
  outbox.Abandon(0);
  EXPECT_EQ(empty_count, 0) << "nothing was kept";
  ExpectOk(outbox.Send(1, Bytes(1 << 20)));
  outbox.Abandon(1);
  EXPECT_EQ(empty_count, 1);
  outbox.Abandon(1);
  EXPECT_EQ(empty_count, 1);
}

// A peer that says it has taken more than was sent cannot make us write outside of the ring.
TEST(ControlRing, DoesNotBelieveThePeersCounter) {
  PlainMemory memory;
  const ControlMemory control = memory.view();
  RingWriter writer(control, 0, 1);
  const Bytes much(static_cast<size_t>(2 * control.ring_bytes()), 1);
  EXPECT_EQ(writer.Put(much), static_cast<size_t>(control.ring_bytes()));
  control.pair(1, 0).consumed.store(uint64_t{1} << 50);
  EXPECT_EQ(writer.Room(), 0U);
  EXPECT_EQ(writer.Put(much), 0U);
}

// Not one that a sanitizer has started.
bool IsOurs(const std::filesystem::path& thread) {
  std::string name;
  std::getline(std::ifstream(thread / "comm"), name);
  return name.starts_with("mydist-") || thread.filename() == std::to_string(getpid());
}

// How often each thread of this process has gone to sleep.
std::map<std::string, int64_t> SleepCounts() {
  std::map<std::string, int64_t> counts;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (!IsOurs(thread.path())) continue;
    std::ifstream status(thread.path() / "status");
    const std::string wanted = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(wanted)) {
        counts[thread.path().filename()] = std::stoll(line.substr(wanted.size()));
      }
    }
  }
  return counts;
}

// How often all threads sleep in one Await that nothing should end: too often when something does.
int64_t SleepsIn(ControlPlane& plane, Duration duration) {
  std::map<std::string, int64_t> before = SleepCounts();
  const TimePoint deadline = Now() + duration;
  plane.Await(deadline);
  if (Now() < deadline) return std::numeric_limits<int64_t>::max();
  int64_t sleeps = 0;
  for (const auto& [thread, count] : SleepCounts()) sleeps += count - before[thread];
  return sleeps;
}

void ExpectNoWakeUps(LocalRank& rank, const shm::ForkedRanks::Seat& seat, int size) {
  const int previous = (seat.rank + size - 1) % size;
  ExpectOk(rank.plane().Send((seat.rank + 1) % size, Numbered(1, 1 << 20)));
  ExpectMessage(rank, {previous, Numbered(1, 1 << 20)});
  ASSERT_TRUE(seat.exchange({}).ok());  // All are through, and couriers fall asleep.
  const TimePoint limit = Soon();
  while (SleepsIn(rank.plane(), std::chrono::milliseconds(200)) > 1) {
    ASSERT_LT(Now(), limit) << "never at rest";
  }
  EXPECT_EQ(SleepCounts().size(), 3U) << "threads";
  EXPECT_LE(SleepsIn(rank.plane(), std::chrono::seconds(1)), 1) << "only the sleep in Await";
  ASSERT_TRUE(seat.exchange({}).ok());
  ExpectOk(rank.plane().Close(Soon()));
}

// Each rank is a process: its main thread, the watcher and, after a long message, the courier.
TEST(LocalControlPlane, DoesNotWakeUpWhileIdle) {
  constexpr int kSize = 3;
  const shm::ShmDirectory directory;
  shm::ForkedRanks ranks(kSize, AsRank(kSize, directory, [](LocalRank& rank, const auto& seat) {
                           ExpectNoWakeUps(rank, seat, kSize);
                         }));
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

}  // namespace
}  // namespace mydist::local
