// Votes: a few words of every rank of the host, for all to read: what it says to agree on without
// messages. They mean nothing here. Owned by whoever votes and used by whoever drives the engine;
// the arena outlives it. All words are 0 at first; each has one writer, which has a line of its
// own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memory/shm/arena.h"

namespace mydist::shm {

class Votes {
 public:
  static constexpr size_t kWords = VoteLine::kWords;  // Of each rank.

  explicit Votes(Arena* arena) : arena_(arena) {}

  // In place of the word before. Never blocks, wakes nobody. `number` < kWords.
  void Cast(size_t number, uint64_t word) {
    arena_->vote(arena_->index()).words[number].store(word, std::memory_order_release);
  }

  // The latest word of a rank, an index in the arena.
  uint64_t Read(size_t number, int rank) const {
    return arena_->vote(rank).words[number].load(std::memory_order_acquire);
  }

 private:
  Arena* const arena_;
};

}  // namespace mydist::shm
