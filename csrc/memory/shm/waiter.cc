#include "memory/shm/waiter.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "base/log.h"
#include "world/late_writes.h"

namespace mydist::shm {

void RingBell(Bell& bell) {
  bell.rings.fetch_add(1);
  WakeSleepers(bell);
}

void WakeSleepers(Bell& bell) {
  syscall(SYS_futex, &bell.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool SleepOnBell(Bell& bell, uint32_t rings, std::chrono::nanoseconds limit) {
  const timespec timeout{static_cast<time_t>(limit.count() / 1'000'000'000),
                         static_cast<long>(limit.count() % 1'000'000'000)};
  if (bell.rings.load() == rings) {
    syscall(SYS_futex, &bell.rings, FUTEX_WAIT, rings, &timeout, nullptr, 0);
  }
  return bell.rings.load() != rings;
}

bool AcceptSleeperBarriers() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 &&
         SleeperBarrier();
}

bool SleeperBarrier() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
}

Waiter::Waiter(Arena* arena)
    : arena_(arena), is_crowded_(arena->is_crowded()), sleepers_order_(arena->SleepersOrder()) {
  ranks_.reserve(2 * static_cast<size_t>(arena->size()));  // Each may be waited for both ways.
}

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

SlotSteps::SlotSteps(Arena* arena, Waiter* waiter)
    : arena_(arena),
      waiter_(waiter),
      index_(arena->index()),
      posted_(static_cast<size_t>(arena->size())),
      seen_(static_cast<size_t>(arena->size())),
      halves_(static_cast<size_t>(arena->size())) {
  for (auto& readers : readers_) readers.resize(static_cast<size_t>(arena->size()));
}

// A peer that has posted a later step has finished that one; no need to look at another line.
bool SlotSteps::IsRead(int peer) const {
  const uint64_t step = readers_[half_][static_cast<size_t>(peer)];
  return seen_[static_cast<size_t>(peer)] > step ||
         arena_->pair(peer, index_).done.load(std::memory_order_acquire) >= step;
}

Result<uint8_t*> SlotSteps::Begin() {
  half_ = 1 - half_;
  halves_[static_cast<size_t>(index_)] = static_cast<int>(half_);
  for (int peer = 0; peer < arena_->size(); ++peer) {
    if (readers_[half_][static_cast<size_t>(peer)] == 0 || IsRead(peer)) continue;
    MYDIST_RETURN_IF_ERROR(waiter_->Await({{&peer, 1}, {&peer, 1}}, [&] { return IsRead(peer); }));
  }
  return arena_->slot(index_, static_cast<int>(half_));
}

Status SlotSteps::AwaitPosts(std::span<const int> peers) {
  for (const int peer : peers) {
    const uint64_t step = posted_[static_cast<size_t>(peer)];
    const PostLine& post = arena_->pair(peer, index_).posts[step % 2];
    MYDIST_RETURN_IF_ERROR(waiter_->Await(
        {peers, {&peer, 1}}, [&] { return post.step.load(std::memory_order_acquire) >= step; }));
    seen_[static_cast<size_t>(peer)] = step;
    halves_[static_cast<size_t>(peer)] = post.half % 2;
  }
  return Status::Ok();
}

void SlotSteps::AwaitQuiet(std::span<const int> peers, uint64_t more_steps, const Status& error) {
  // One that is silent will not come in two seconds either, and the others are to hear of it.
  const bool is_late =
      error.code() == StatusCode::kTimeout || error.failure().finding == kSilentFinding;
  const TimePoint deadline = Now() + (is_late ? Duration(kShortQuietLimit) : Duration(kQuietLimit));
  for (const int peer : peers) {
    const uint64_t step = posted_[static_cast<size_t>(peer)] + more_steps;
    const PostLine& post = arena_->pair(peer, index_).posts[step % 2];
    const auto is_quiet = [&] { return post.step.load(std::memory_order_acquire) >= step; };
    const Status waited = waiter_->Await({{&peer, 1}, {&peer, 1}, /*is_watched=*/false},
                                         [&] { return is_quiet() || Now() >= deadline; });
    // One that is gone is as quiet as one that has come so far.
    if (!waited.ok() || is_quiet()) continue;
    ExpectLateWrites();
    MYDIST_LOG(kWarning) << "a collective failed while " << arena_->Name(peer)
                         << " had not finished it. That rank may still write to the tensors, so "
                            "their memory is not reused before this process exits";
  }
}

void SlotSteps::Finish(std::span<const int> peers) {
  for (const int peer : peers) {
    const uint64_t step = posted_[static_cast<size_t>(peer)];
    arena_->pair(index_, peer).done.store(step, std::memory_order_release);
    readers_[half_][static_cast<size_t>(peer)] = step;
  }
  waiter_->Ring(peers);
}

}  // namespace mydist::shm
