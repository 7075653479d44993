// Votes: one word of every rank of the host, for all to read: what it says to agree on without
// messages. Means nothing here. Owned by whoever votes and used by whoever drives the engine; the
// arena outlives it. All words are 0 at first; each has one writer and a line of its own.
#pragma once

#include <atomic>
#include <cstdint>

#include "ops/shm/arena.h"

namespace mydist::shm {

class Votes {
 public:
  explicit Votes(Arena* arena) : arena_(arena) {}

  // In place of the word before. Never blocks, wakes nobody.
  void Cast(uint64_t word) {
    arena_->vote(arena_->index()).word.store(word, std::memory_order_release);
  }

  // The latest word of a rank, an index in the arena.
  uint64_t Read(int rank) const { return arena_->vote(rank).word.load(std::memory_order_acquire); }

 private:
  Arena* const arena_;
};

}  // namespace mydist::shm
