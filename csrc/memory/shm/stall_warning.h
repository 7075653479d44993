// StallWarning: says which ranks of the host hold up one that waits in the middle of a collective.
// The negotiation's warnings (controller/stall_inspector.h) end where a collective begins, and from
// there on nobody may give up: the tensors are half reduced.
// Owned by the Waiter; used by whoever drives the engine.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "base/clock.h"
#include "memory/shm/arena.h"

namespace mydist::shm {

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

}  // namespace mydist::shm
