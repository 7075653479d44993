// Waking: what makes sure that who posts sees who sleeps, or who is about to sleep sees the post.
// Either both sides run a fence, or the sleeper makes all the others run one: dearer for who
// sleeps, nothing for who posts. Used by the Arena and the Waiter; any thread.
#pragma once

namespace mydist::shm {

// Lets other processes' SleeperBarrier order this process. False where the kernel cannot.
bool AcceptSleeperBarriers();

// After storing "asleep", before the last look: every process that accepts barriers has run a fence
// when this returns true. False where the kernel does not let this process (a seccomp filter that
// came after the start): who posts then may not see the sleeper.
[[nodiscard]] bool SleeperBarrier();

}  // namespace mydist::shm
