// Waiter: how a rank waits for its peers in shared memory: spins briefly, then sleeps on its bell.
// Owned by the ShmPort; used by the thread that drives the engine. A rank that has changed what a
// peer may be waiting for rings its bell.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memory/shm/arena.h"
#include "memory/shm/arena_layout.h"
#include "world/watchdog.h"

namespace mydist::shm {

// Sleeping until a bell rings: a futex in memory that processes share.

// Wakes the threads that sleep on it, and keeps from sleeping those about to.
void RingBell(Bell& bell);

// The second half of RingBell, for a rank that has counted the ring and then seen a sleeper.
void WakeSleepers(Bell& bell);

// Sleeps until the bell has been rung since it had `rings`, or for `limit`. False when it was not
// rung in that time.
bool SleepOnBell(Bell& bell, uint32_t rings, std::chrono::nanoseconds limit);

// Waking: what makes sure that the poster sees the sleeper, or that the one about to sleep sees the
// post. Either both sides run a fence, or the sleeper makes all the others run one: dearer for the
// sleeper, nothing for the poster. Used by the Arena and the Waiter; any thread.

// Lets other processes' SleeperBarrier order this process. False where the kernel cannot.
bool AcceptSleeperBarriers();

// After storing "asleep", before the last look: every process that accepts barriers has run a fence
// when this returns true. False where the kernel does not let this process (a seccomp filter that
// came after the start): the poster then may not see the sleeper.
[[nodiscard]] bool SleeperBarrier();

class Waiter {
 public:
  // `arena` outlives this object.
  explicit Waiter(Arena* arena);

  // From now on waits ask it. Null: they are not bounded.
  void SetWatchdog(Watchdog* watchdog) { watchdog_ = watchdog; }

  // After a change: wakes those of `peers` that sleep. Costs at most a fence when none does.
  void Ring(std::span<const int> peers);

  struct Peers {
    std::span<const int> all;     // Of the set: one that dies ends the wait.
    std::span<const int> needed;  // One that leaves ends the wait, too.
    bool is_watched = true;       // Else the watchdog is not asked.
  };

  // Returns when `ready()` is true, which a change by one of the needed peers makes so. kPeerLost
  // when one is gone before, and what the watchdog says.
  template <typename Ready>
  Status Await(const Peers& peers, Ready ready) {
    if (ready()) return Status::Ok();
    for (int look = is_crowded_ ? kLooksWithoutClock : 0; look < kLooksWithoutClock; ++look) {
      Pause();
      if (ready()) return Status::Ok();
    }
    const TimePoint spin_end = Now() + kSpin;
    for (int look = 1; !IsOver(look, spin_end); ++look) {
      Pause();
      if (ready()) return Status::Ok();
    }
    return Sleep(peers, ready);
  }

 private:
  // A sleep costs about this much to wake from.
  static constexpr std::chrono::microseconds kSpin{50};
  static constexpr int kLooksWithoutClock = 64;  // A small step takes less.
  static constexpr int kLooksPerClock = 16;
  // When ranks outnumber cores.
  static constexpr int kYields = 4;
  // A rank that dies rings no bell.
  static constexpr std::chrono::milliseconds kCheckInterval{50};
  // Nor may one that lives, while is_blind_.
  static constexpr std::chrono::milliseconds kBlindInterval{1};

  bool IsOver(int look, TimePoint spin_end) const {
    if (is_crowded_) return look > kYields;
    return look % kLooksPerClock == 0 && Now() >= spin_end;
  }
  void Pause() const;

  template <typename Ready>
  Status Sleep(const Peers& peers, Ready ready) {
    Bell& bell = arena_->bell(arena_->index());
    WatchedWait wait(peers.is_watched ? watchdog_ : nullptr);
    TimePoint next_check = Now() + kCheckInterval;
    for (;;) {
      const uint32_t rings = bell.rings.load();
      AnnounceSleep(true);
      const bool has_changed = ready();
      const bool was_rung = has_changed || SleepUntilRung(bell, rings);
      AnnounceSleep(false);
      if (has_changed || ready()) return Status::Ok();
      const TimePoint now = Now();
      if (wait.IsDue(now)) {
        const Status watched = wait.Look(RanksOf(peers.needed), now);
        // What has come while it asked counts.
        if (!watched.ok()) return ready() ? Status::Ok() : watched;
      }
      // Others may ring all the time.
      const bool is_early = was_rung || is_blind_;
      if (is_early && !AnyLeft(peers.needed) && now < next_check) continue;
      next_check = now + kCheckInterval;
      const Status status = arena_->CheckPeers(peers.all, peers.needed);
      // What a peer did before it went counts.
      if (!status.ok()) return ready() ? Status::Ok() : status;
    }
  }
  void AnnounceSleep(bool asleep);
  bool SleepUntilRung(Bell& bell, uint32_t rings);
  bool AnyLeft(std::span<const int> peers) const;
  std::span<const int> RanksOf(std::span<const int> peers);

  Arena* const arena_;
  const bool is_crowded_;
  const bool sleepers_order_;  // Not the posters; see Waking.
  bool is_blind_ = false;      // They should, but this one cannot any more.
  Watchdog* watchdog_ = nullptr;
  std::vector<int> ranks_;  // Of the peers waited for; kept for its memory.
};

// SlotSteps: the step that collectives in shared memory are made of: publish a message to each peer
// and await theirs. A step may also hand over the slot: begin, fill it, publish, read the peers',
// finish. Owned by the ShmPort, which all process sets share; used by the thread that drives the
// engine. Peers are indices in the arena. All members of a set take the same steps, each naming the
// others; two ranks take the steps they share in the same order.
class SlotSteps {
 public:
  // Both outlive this object.
  SlotSteps(Arena* arena, Waiter* waiter);

  // Room for one step of any set.
  int64_t slot_bytes() const { return arena_->layout().slot_bytes(); }

  // The own slot, to be filled. Waits for the ranks that still read what it held two steps ago.
  // kPeerLost.
  Result<uint8_t*> Begin();
  // Shows the slot to `peers` and waits for theirs; kPeerLost.
  Status Publish(std::span<const int> peers) { return Publish(peers, nullptr, 0); }
  // With `message_bytes` (at most kMessageBytes) of message to everybody.
  Status Publish(std::span<const int> peers, const void* message, int64_t message_bytes) {
    return PublishEach(peers, [&](int, uint8_t* room) {
      if (message_bytes > 0) std::memcpy(room, message, static_cast<size_t>(message_bytes));
    });
  }
  // fill(peer, room) writes the message to each peer.
  template <typename Fill>
  Status PublishEach(std::span<const int> peers, Fill fill) {
    for (const int peer : peers) {
      const uint64_t step = ++posted_[static_cast<size_t>(peer)];
      PostLine& post = arena_->pair(index_, peer).posts[step % 2];
      fill(peer, post.message.data());
      post.half = static_cast<uint8_t>(half_);
      post.step.store(step, std::memory_order_release);
    }
    waiter_->Ring(peers);
    return AwaitPosts(peers);
  }
  // After Publish, and until the next one that names `peer`: its message.
  const uint8_t* MessageOf(int peer) const {
    return arena_->pair(peer, index_).posts[posted_[static_cast<size_t>(peer)] % 2].message.data();
  }
  // After Publish, what the peer has published; own: what we have. Until Finish, or, where all that
  // is read is also written, until the next Publish.
  uint8_t* SlotOf(int rank) const { return arena_->slot(rank, halves_[static_cast<size_t>(rank)]); }
  // After an error, when this rank has left: waits until each of `peers` has posted `more_steps`
  // beyond the last step posted to it, or is gone; kQuietLimit at most, since it may be stopped,
  // and only a moment when it has been waited for in vain already: then late writes are to be
  // expected (world/late_writes.h).
  void AwaitQuiet(std::span<const int> peers, uint64_t more_steps, const Status& error);
  // The slots of `peers` have been read.
  void Finish(std::span<const int> peers);

 private:
  static constexpr std::chrono::seconds kQuietLimit{2};
  static constexpr std::chrono::milliseconds kShortQuietLimit{50};

  Status AwaitPosts(std::span<const int> peers);
  bool IsRead(int peer) const;

  Arena* const arena_;
  Waiter* const waiter_;
  const int index_;
  size_t half_ = 0;               // Of the own slot that the step in progress uses.
  std::vector<uint64_t> posted_;  // Steps shared with each peer.
  std::vector<uint64_t> seen_;    // Of them, those the peer is known to have posted.
  std::vector<int> halves_;       // Which half of each rank's slot the step in progress reads.
  // For each half of the own slot, which ranks have read it, and at which step shared with them.
  std::array<std::vector<uint64_t>, 2> readers_;
};

}  // namespace mydist::shm
