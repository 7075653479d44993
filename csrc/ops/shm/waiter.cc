#include "ops/shm/waiter.h"

#include <sched.h>

#include <algorithm>

#include "ops/shm/bell.h"

namespace mydist::shm {
namespace {

// Those this process may use, at the time it is asked.
int CoreCount() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace

Waiter::Waiter(Arena* arena) : arena_(arena), is_crowded_(arena->size() > CoreCount()) {}

// The fence orders the caller's change before the look at who is asleep; AnnounceSleep orders the
// other way round, so one of the two sides sees the other.
void Waiter::Ring(std::span<const int> peers) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const int peer : peers) {
    if (arena_->rank_line(peer).asleep.load(std::memory_order_relaxed) != 0) {
      RingBell(arena_->bell(peer));
    }
  }
}

void Waiter::AnnounceSleep(bool asleep) {
  arena_->rank_line(arena_->index()).asleep.store(asleep ? 1 : 0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
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
  return SleepOnBell(bell, rings, kCheckInterval);
}

bool Waiter::AnyLeft(std::span<const int> peers) const {
  return std::any_of(peers.begin(), peers.end(), [&](int peer) {
    return arena_->rank_line(peer).presence.load() == Presence::kLeft;
  });
}

}  // namespace mydist::shm
