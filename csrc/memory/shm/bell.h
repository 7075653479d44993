// Sleeping until a bell rings: a futex in memory that processes share.
#pragma once

#include <chrono>
#include <cstdint>

#include "memory/shm/arena_layout.h"

namespace mydist::shm {

// Wakes whoever sleeps on it, and keeps from sleeping whoever is about to.
void RingBell(Bell& bell);

// The second half of RingBell, for who has counted the ring and then seen somebody asleep.
void WakeSleepers(Bell& bell);

// Sleeps until the bell has been rung since it had `rings`, or for `limit`. False when it was not
// rung in that time.
bool SleepOnBell(Bell& bell, uint32_t rings, std::chrono::nanoseconds limit);

// Waking: what makes sure that who posts sees who sleeps, or who is about to sleep sees the post.
// Either both sides run a fence, or the sleeper makes all the others run one: dearer for who
// sleeps, nothing for who posts. Used by the Arena and the Waiter; any thread.

// Lets other processes' SleeperBarrier order this process. False where the kernel cannot.
bool AcceptSleeperBarriers();

// After storing "asleep", before the last look: every process that accepts barriers has run a fence
// when this returns true. False where the kernel does not let this process (a seccomp filter that
// came after the start): who posts then may not see the sleeper.
[[nodiscard]] bool SleeperBarrier();

}  // namespace mydist::shm
