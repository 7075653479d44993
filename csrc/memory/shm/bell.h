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

}  // namespace mydist::shm
