// Waiter: how a rank waits for its peers in shared memory: spins briefly, then sleeps on its bell.
// Owned by the ShmPort; used by whoever drives the engine, one thread at a time. Whoever has
// changed what a peer may be waiting for rings.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "memory/shm/arena.h"

namespace mydist::shm {

// StallWarning: says which ranks of the host hold up one that waits in the middle of a collective.
// The negotiation's warnings (controller/stall_inspector.h) end where a collective begins, and from
// there on nobody may give up: the tensors are half reduced.
// Owned by the Waiter; used by whoever drives the engine.

class StallWarning {
 public:
  // What this rank is in the middle of: "allreduce 'x'".
  using Describe = std::function<std::string()>;

  // One wait, from its beginning.
  struct Wait {
    TimePoint begin = Now();
    Duration next = Duration::zero();  // When to warn, after `begin`; zero: not set yet.
  };

  // `arena` outlives this object. Warns of nothing until it is told when.
  explicit StallWarning(const Arena* arena) : arena_(arena) {}

  // From now on: after `first` (zero or less: never), and at 2, 4, 8 … times that.
  void Set(Duration first, Describe describe);

  // To be called from time to time while `peers` have not done what is waited for.
  void Look(Wait& wait, std::span<const int> peers) const;

 private:
  std::string Text(Duration waited, std::span<const int> peers) const;
  std::string StateOf(int peer) const;

  const Arena* const arena_;
  Duration first_ = Duration::zero();
  Describe describe_;
};

class Waiter {
 public:
  // `arena` outlives this object.
  explicit Waiter(Arena* arena);

  StallWarning& stall_warning() { return stall_warning_; }

  // After a change: wakes those of `peers` that sleep. Costs at most a fence when nobody does.
  void Ring(std::span<const int> peers);

  struct Peers {
    std::span<const int> all;     // Of the set: one that dies ends the wait.
    std::span<const int> needed;  // One that leaves ends the wait, too.
  };

  // Returns when `ready()` is true, which a change by one of the needed peers makes so. kPeerLost
  // when one is gone before.
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
    StallWarning::Wait wait;
    TimePoint next_check = Now() + kCheckInterval;
    for (;;) {
      const uint32_t rings = bell.rings.load();
      AnnounceSleep(true);
      const bool has_changed = ready();
      const bool was_rung = has_changed || SleepUntilRung(bell, rings);
      AnnounceSleep(false);
      if (has_changed || ready()) return Status::Ok();
      stall_warning_.Look(wait, peers.needed);
      // Others may ring all the time.
      const bool is_early = was_rung || is_blind_;
      if (is_early && !AnyLeft(peers.needed) && Now() < next_check) continue;
      next_check = Now() + kCheckInterval;
      const Status status = arena_->CheckPeers(peers.all, peers.needed);
      // What a peer did before it went counts.
      if (!status.ok()) return ready() ? Status::Ok() : status;
    }
  }
  void AnnounceSleep(bool asleep);
  bool SleepUntilRung(Bell& bell, uint32_t rings);
  bool AnyLeft(std::span<const int> peers) const;

  Arena* const arena_;
  const bool is_crowded_;
  const bool sleepers_order_;  // Not who posts; see waking.h.
  bool is_blind_ = false;      // They should, but this one cannot any more.
  StallWarning stall_warning_;
};

}  // namespace mydist::shm
