// What every ControlPlane must do, as functions that each rank of a job runs on its own Connection:
// N threads over loopback or Gloo, or one process per rank over Gloo or MPI. All ranks run the same
// functions in the same order; each ends in step, so the next may follow on the same connection.
// A hang is a failure, by the time limit of the surrounding test.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/deep.h"
#include "conformance/receive_by.h"
#include "conformance/status_checks.h"
#include "conformance/whistle.h"
#include "transport/factory.h"

namespace mydist::conformance {

inline TimePoint Soon() { return Now() + std::chrono::seconds(30); }
inline TimePoint LongAgo() { return Now() - std::chrono::seconds(1); }

// One rank's end of the conversation: sorts incoming messages by source.
class Correspondent {
 public:
  explicit Correspondent(Connection& connection) : connection_(connection) {}

  int rank() const { return connection_.rank; }
  int size() const { return connection_.size; }
  ControlPlane& plane() { return *connection_.control; }
  Transport& transport() { return *connection_.transport; }

  void Send(int peer, Bytes payload) {
    const Status sent = plane().Send(peer, std::move(payload));
    ASSERT_TRUE(sent.ok()) << sent.ToString();
  }

  // The next message of `peer`; an empty message and a failure when none comes.
  Bytes ReceiveFrom(int peer) {
    return NextOf(peer, [this](TimePoint deadline) { return ReceiveBy(plane(), deadline); });
  }

  // The same without ever waiting in Await.
  Bytes LookFor(int peer) {
    return NextOf(peer, [this](TimePoint) { return plane().Receive(); });
  }

  // Waits for a loss; keeps the messages that come before.
  Status AwaitLoss() {
    const TimePoint deadline = Soon();
    while (Now() < deadline) {
      Result<std::optional<IncomingMessage>> got = ReceiveBy(plane(), deadline);
      if (!got.ok()) return got.status();
      if (got->has_value()) {
        pending_[(*got)->source].push_back(std::move((*got)->payload));
      }
    }
    return Status::Ok();
  }

  // Returns when all ranks have come here.
  void Synchronize() {
    const Bytes token{0x5a};
    if (rank() != 0) {
      Send(0, token);
      EXPECT_EQ(ReceiveFrom(0), token);
      return;
    }
    for (int peer = 1; peer < size(); ++peer) EXPECT_EQ(ReceiveFrom(peer), token);
    for (int peer = 1; peer < size(); ++peer) Send(peer, token);
  }

  // The same without a control message: what surrounds a test that wants silence.
  void SynchronizeSilently() {
    const uint8_t token = 0x5a;
    Bytes got(static_cast<size_t>(size()));
    std::vector<SendTransfer> sends;
    std::vector<ReceiveTransfer> receives;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      sends.push_back({peer, &token, 1});
      receives.push_back({peer, &got[static_cast<size_t>(peer)], 1});
    }
    const Status status = transport().Exchange(sends, receives);
    ASSERT_TRUE(status.ok()) << status.ToString();
    for (const ReceiveTransfer& receive : receives) {
      EXPECT_EQ(*static_cast<uint8_t*>(receive.data), token);
    }
  }

 private:
  template <typename Take>
  Bytes NextOf(int peer, Take take) {
    const TimePoint deadline = Soon();
    while (pending_[peer].empty()) {
      Result<std::optional<IncomingMessage>> got = take(deadline);
      if (!got.ok()) {
        ADD_FAILURE() << "rank " << rank() << " waits for " << peer << ": "
                      << got.status().ToString();
        return {};
      }
      if (got->has_value()) {
        pending_[(*got)->source].push_back(std::move((*got)->payload));
      } else if (Now() >= deadline) {
        ADD_FAILURE() << "rank " << rank() << " got nothing from rank " << peer;
        return {};
      }
    }
    Bytes payload = std::move(pending_[peer].front());
    pending_[peer].pop_front();
    return payload;
  }

  Connection& connection_;
  std::map<int, std::deque<Bytes>> pending_;
};

// A message whose every byte depends on where it comes from, where it goes, and its number.
inline Bytes Pattern(int from, int to, int number, int64_t bytes) {
  Bytes payload(static_cast<size_t>(bytes));
  uint32_t state = 1 + static_cast<uint32_t>(from * 1000003 + to * 10007 + number * 101);
  for (uint8_t& byte : payload) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return payload;
}

inline void DeliversInOrder(Correspondent& me) {
  constexpr int kMessages = 300;
  for (int number = 0; number < kMessages; ++number) {
    for (int peer = 0; peer < me.size(); ++peer) {
      if (peer != me.rank()) me.Send(peer, Pattern(me.rank(), peer, number, 8 + number % 50));
    }
  }
  for (int peer = 0; peer < me.size(); ++peer) {
    if (peer == me.rank()) continue;
    for (int number = 0; number < kMessages; ++number) {
      ASSERT_EQ(me.ReceiveFrom(peer), Pattern(peer, me.rank(), number, 8 + number % 50))
          << "message " << number << " of rank " << peer;
    }
  }
  me.Synchronize();
}

inline void DeliversEverySize(Correspondent& me) {
  // Around powers of two, where backends change from one protocol to another; then 5 MiB.
  const std::vector<int64_t> sizes = {0,    1,    31,   32,    4063,  4064,    4065,
                                      4095, 4096, 4097, 65536, 65537, 5 << 20, 0};
  for (int peer = 0; peer < me.size(); ++peer) {
    if (peer == me.rank()) continue;
    for (size_t i = 0; i < sizes.size(); ++i) {
      me.Send(peer, Pattern(me.rank(), peer, static_cast<int>(i), sizes[i]));
    }
  }
  for (int peer = 0; peer < me.size(); ++peer) {
    if (peer == me.rank()) continue;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Bytes got = me.ReceiveFrom(peer);
      ASSERT_EQ(static_cast<int64_t>(got.size()), sizes[i]);
      // Not ASSERT_EQ on the bytes: a failure would print megabytes.
      ASSERT_TRUE(got == Pattern(peer, me.rank(), static_cast<int>(i), sizes[i]))
          << "bytes of message " << i << " (" << sizes[i] << " bytes) of rank " << peer;
    }
  }
  me.Synchronize();
}

// A long one-sided conversation: nothing comes back that could tell the sender to free memory.
inline void DeliversOneSidedly(Correspondent& me) {
  constexpr int kMessages = 2000;
  const int next = (me.rank() + 1) % me.size();
  const int previous = (me.rank() + me.size() - 1) % me.size();
  if (me.rank() == 0) {
    for (int number = 0; number < kMessages; ++number) me.Send(next, Pattern(0, next, number, 40));
  } else if (previous == 0) {
    for (int number = 0; number < kMessages; ++number) {
      ASSERT_EQ(me.ReceiveFrom(0), Pattern(0, me.rank(), number, 40)) << "message " << number;
    }
  }
  me.Synchronize();
}

// Send must not wait for the receiver: the peer looks at its messages only after a tensor came
// whose sending follows all of them.
inline void SendsWhilePeerIsBusy(Correspondent& me) {
  constexpr int kMessages = 24;
  constexpr int64_t kBytes = int64_t{1} << 20;
  uint8_t flag = 0x7e;
  if (me.rank() == 0) {
    for (int peer = 1; peer < me.size(); ++peer) {
      for (int i = 0; i < kMessages; ++i) me.Send(peer, Pattern(0, peer, i, kBytes));
      const SendTransfer signal{peer, &flag, 1};
      ASSERT_TRUE(me.transport().Exchange({&signal, 1}, {}).ok());
    }
  } else {
    uint8_t got = 0;
    const ReceiveTransfer signal{0, &got, 1};
    ASSERT_TRUE(me.transport().Exchange({}, {&signal, 1}).ok());
    EXPECT_EQ(got, flag);
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(me.ReceiveFrom(0) == Pattern(0, me.rank(), i, kBytes)) << "message " << i;
    }
  }
  me.Synchronize();
}

inline void ExpectNothing(const Result<std::optional<IncomingMessage>>& got) {
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_FALSE(got->has_value());
}

// Waits until `deadline` in silence: a wait may return early, but not again and again.
inline void ExpectQuietUntil(Correspondent& me, TimePoint deadline) {
  int returns = 0;
  for (; Now() < deadline; ++returns) me.plane().Await(deadline);
  EXPECT_LE(returns, 3);
}

inline void WakeBeforeAwaitIsKept(Correspondent& me) {
  me.SynchronizeSilently();
  me.plane().Wake();
  me.plane().Await(kNever);  // Hangs when the wake was lost.
  ExpectNothing(me.plane().Receive());
  // It is used up: the next one waits for its whole time.
  ExpectQuietUntil(me, Now() + std::chrono::milliseconds(30));
  me.plane().Await(LongAgo());
  me.SynchronizeSilently();
}

inline void WakeDuringAwaitReturns(Correspondent& me) {
  const int rounds = InDeep(300, 60);
  me.SynchronizeSilently();
  std::binary_semaphore about_to_wait(0);
  std::thread waker([&] {
    for (int round = 0; round < rounds; ++round) {
      about_to_wait.acquire();
      me.plane().Wake();
    }
  });
  for (int round = 0; round < rounds; ++round) {
    about_to_wait.release();
    me.plane().Await(kNever);
    ExpectNothing(me.plane().Receive());
  }
  waker.join();
  me.SynchronizeSilently();
}

inline void SendToAll(Correspondent& me, int number) {
  for (int peer = 0; peer < me.size(); ++peer) {
    if (peer != me.rank()) me.Send(peer, Pattern(me.rank(), peer, number, 100));
  }
}

inline void ReceiveFromAll(Correspondent& me, int number) {
  for (int peer = 0; peer < me.size(); ++peer) {
    if (peer == me.rank()) continue;
    EXPECT_EQ(me.ReceiveFrom(peer), Pattern(peer, me.rank(), number, 100));
  }
}

// Wakes from three other threads neither lose nor reorder messages.
inline void WakesDoNotDisturbMessages(Correspondent& me) {
  std::atomic<bool> done{false};
  std::vector<std::thread> wakers;
  for (int i = 0; i < 3; ++i) {
    wakers.emplace_back([&] {
      while (!done.load()) {
        me.plane().Wake();
        std::this_thread::yield();
      }
    });
  }
  for (int number = 0; number < InDeep(100, 25); ++number) {
    SendToAll(me, number);
    ReceiveFromAll(me, number);
  }
  done.store(true);
  for (std::thread& waker : wakers) waker.join();
  me.SynchronizeSilently();
  // Any number of wakes nobody waited for count as one.
  me.plane().Wake();
  me.plane().Await(kNever);
  ExpectQuietUntil(me, Now() + std::chrono::milliseconds(5));
  me.SynchronizeSilently();
}

// With nobody in Await: looking alone must make messages arrive in the end.
inline void ReceiveAloneBringsMessages(Correspondent& me) {
  me.SynchronizeSilently();
  ExpectNothing(me.plane().Receive());
  me.SynchronizeSilently();
  const int peer = me.rank() ^ 1;
  if (peer < me.size()) {
    me.Send(peer, Pattern(me.rank(), peer, 7, 10));
    std::optional<IncomingMessage> found;
    for (const TimePoint limit = Soon(); !found.has_value() && Now() < limit;) {
      Result<std::optional<IncomingMessage>> looked = me.plane().Receive();
      ASSERT_TRUE(looked.ok()) << looked.status().ToString();
      found = std::move(*looked);
    }
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->source, peer);
    EXPECT_EQ(found->payload, Pattern(peer, me.rank(), 7, 10));
  }
  me.SynchronizeSilently();
}

// News that nobody takes ends every Await, not only the first.
inline void AwaitReturnsWhileThereIsNews(Correspondent& me) {
  me.SynchronizeSilently();
  SendToAll(me, 1);
  for (int i = 0; i < 3; ++i) me.plane().Await(kNever);  // Hangs when news counts once only.
  ReceiveFromAll(me, 1);
  me.SynchronizeSilently();
}

inline void AttendedNewsDoesNotEndAwait(Correspondent& me) {
  me.SynchronizeSilently();
  me.plane().Attend(true);
  me.SynchronizeSilently();
  SendToAll(me, 2);
  ExpectQuietUntil(me, Now() + std::chrono::milliseconds(20));
  me.plane().Wake();
  me.plane().Await(kNever);  // Attended or not.
  me.plane().Attend(false);
  me.plane().Await(kNever);  // Hangs when news of that time is forgotten.
  ReceiveFromAll(me, 2);
  me.SynchronizeSilently();
}

// A thread that sleeps while another attends sees the news once the other has stopped.
inline void EndOfAttentionEndsAwait(Correspondent& me) {
  const int rounds = InDeep(50, 10);
  for (int round = 0; round < rounds; ++round) {
    me.SynchronizeSilently();
    me.plane().Attend(true);
    std::thread sleeper([&] { me.plane().Await(kNever); });
    SendToAll(me, round);
    me.SynchronizeSilently();
    me.plane().Attend(false);
    sleeper.join();
    ReceiveFromAll(me, round);
  }
  me.SynchronizeSilently();
}

// One thread waits, another takes, with and without attention: nothing is lost or out of order.
inline void AwaitBesideTheTakerDisturbsNothing(Correspondent& me) {
  me.SynchronizeSilently();
  std::atomic<bool> done{false};
  std::thread sleeper([&] {
    while (!done.load()) me.plane().Await(kNever);
  });
  for (int number = 0; number < InDeep(200, 40); ++number) {
    me.plane().Attend(number % 3 != 0);
    SendToAll(me, number);
    for (int peer = 0; peer < me.size(); ++peer) {
      if (peer == me.rank()) continue;
      EXPECT_EQ(me.LookFor(peer), Pattern(peer, me.rank(), number, 100));
    }
  }
  me.plane().Attend(false);
  done.store(true);
  me.plane().Wake();
  sleeper.join();
  me.SynchronizeSilently();
}

// Whoever attends may wait for a peer in another way: what was sent before goes on its way by
// itself.
inline void SendsWhileAttended(Correspondent& me) {
  constexpr int64_t kLong = 4 << 20;
  me.SynchronizeSilently();
  if (me.rank() == 0) {
    for (int peer = 1; peer < me.size(); ++peer) {
      const Whistle whistle;
      me.Send(peer, Bytes(whistle.path().begin(), whistle.path().end()));
      me.plane().Attend(true);
      std::thread sleeper([&] { me.plane().Await(kNever); });
      me.Send(peer, Pattern(0, peer, 0, kLong));
      EXPECT_TRUE(whistle.IsHeard()) << "rank " << peer << " did not get what was sent to it";
      me.plane().Attend(false);
      me.plane().Wake();
      sleeper.join();
    }
  } else {
    const Bytes path = me.ReceiveFrom(0);
    EXPECT_TRUE(me.ReceiveFrom(0) == Pattern(0, me.rank(), 0, kLong));
    Whistle::Blow(std::string(path.begin(), path.end()));
  }
  me.SynchronizeSilently();
}

inline void RunControlPlaneConformance(Connection& connection) {
  Correspondent me(connection);
  DeliversInOrder(me);
  DeliversEverySize(me);
  DeliversOneSidedly(me);
  SendsWhilePeerIsBusy(me);
  WakeBeforeAwaitIsKept(me);
  WakeDuringAwaitReturns(me);
  ReceiveAloneBringsMessages(me);
  WakesDoNotDisturbMessages(me);
  AwaitReturnsWhileThereIsNews(me);
  AttendedNewsDoesNotEndAwait(me);
  EndOfAttentionEndsAwait(me);
  AwaitBesideTheTakerDisturbsNothing(me);
  SendsWhileAttended(me);
}

// Ends the connection. What was sent before Close arrives, and Close is not a loss to the others.
inline void ClosesInOrder(Connection& connection) {
  Correspondent me(connection);
  constexpr int kMessages = 50;
  if (me.rank() == 0) {
    for (int peer = 1; peer < me.size(); ++peer) {
      for (int i = 0; i < kMessages; ++i) me.Send(peer, Pattern(0, peer, i, 100 + 5000 * i));
    }
  } else {
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(me.ReceiveFrom(0) == Pattern(0, me.rank(), i, 100 + 5000 * i)) << i;
    }
    // Rank 0 is in Close by now or soon; that must not look like a loss.
    ExpectNothing(ReceiveBy(me.plane(), Now() + std::chrono::milliseconds(20)));
  }
  ExpectOk(connection.control->Close(Soon()));
}

}  // namespace mydist::conformance
