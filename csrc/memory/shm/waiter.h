// Waiter: how a rank waits for its peers in shared memory: spins briefly, then sleeps on its bell.
// Owned by the ShmPort; used by whoever drives the engine, one thread at a time. Whoever has
// changed what a peer may be waiting for rings.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memory/shm/arena.h"
#include "world/watchdog.h"

namespace mydist::shm {

class Waiter {
 public:
  // `arena` outlives this object.
  explicit Waiter(Arena* arena);

  // From now on waits ask it. Null: they are not bounded.
  void SetWatchdog(Watchdog* watchdog) { watchdog_ = watchdog; }

  // After a change: wakes those of `peers` that sleep. Costs at most a fence when nobody does.
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
  const bool sleepers_order_;  // Not who posts; see waking.h.
  bool is_blind_ = false;      // They should, but this one cannot any more.
  Watchdog* watchdog_ = nullptr;
  std::vector<int> ranks_;  // Of the peers waited for; kept for its memory.
};

}  // namespace mydist::shm
