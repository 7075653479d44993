#include "memory/shm/waiter.h"

#include <sched.h>

#include <algorithm>

#include "base/log.h"
#include "memory/shm/bell.h"

namespace mydist::shm {

Waiter::Waiter(Arena* arena)
    : arena_(arena), is_crowded_(arena->is_crowded()), sleepers_order_(arena->SleepersOrder()) {}

// The fence, or the rank that is about to sleep, orders the caller's change before its check for
// sleepers; AnnounceSleep orders the other way round, so one of the two sides sees the other.
void Waiter::Ring(std::span<const int> peers) {
  if (sleepers_order_) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  for (const int peer : peers) {
    if (arena_->rank_line(peer).asleep.load(std::memory_order_relaxed) != 0) {
      RingBell(arena_->bell(peer));
    }
  }
}

void Waiter::AnnounceSleep(bool asleep) {
  arena_->rank_line(arena_->index()).asleep.store(asleep ? 1 : 0, std::memory_order_relaxed);
  if (!asleep) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!sleepers_order_ || is_blind_ || SleeperBarrier()) return;
  is_blind_ = true;
  MYDIST_LOG(kWarning) << "the kernel no longer permits membarrier; this rank now polls the other "
                          "ranks of its host every millisecond";
}

void Waiter::Pause() const {
  if (is_crowded_) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

bool Waiter::SleepUntilRung(Bell& bell, uint32_t rings) {
  return SleepOnBell(bell, rings, is_blind_ ? kBlindInterval : kCheckInterval);
}

bool Waiter::AnyLeft(std::span<const int> peers) const {
  return std::any_of(peers.begin(), peers.end(), [&](int peer) {
    return arena_->rank_line(peer).presence.load() == Presence::kLeft;
  });
}

std::span<const int> Waiter::RanksOf(std::span<const int> peers) {
  ranks_.clear();
  for (const int peer : peers) ranks_.push_back(arena_->ranks()[static_cast<size_t>(peer)]);
  return ranks_;
}

}  // namespace mydist::shm
