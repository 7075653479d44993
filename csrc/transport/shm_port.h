// ShmPort: one rank's way into the shared memory of its host: the arena and what works on it.
// Owned by the engine; shared by the collectives of all process sets, which are driven by one
// caller at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "memory/shm/arena.h"
#include "memory/shm/peer_memory.h"
#include "memory/shm/slot_steps.h"
#include "memory/shm/waiter.h"
#include "transport/shm_transport.h"

namespace mydist::shm {

class MYDIST_EXPORT ShmPort {
 public:
  explicit ShmPort(std::unique_ptr<Arena> arena);
  ~ShmPort();

  int index() const { return arena_->index(); }
  Arena& arena() { return *arena_; }
  // The indices in the arena of ranks of the job, if all of them are on this host.
  std::optional<std::vector<int>> IndicesOf(const std::vector<int>& ranks) const;

  // Memory that all ranks of the host see; null when there is none. Thread-safe; outlives the port.
  const std::shared_ptr<ArenaHeap>& heap() const { return arena_->heap(); }
  // How ranks of the host reach each other's tensors, for the log.
  std::string Description() const;

  // How this rank says that it waits for others in the middle of a collective. Never, until set.
  void WarnOfStalls(Duration first, StallWarning::Describe describe) {
    waiter_.stall_warning().Set(first, std::move(describe));
  }

  Transport& transport() { return transport_; }
  SlotSteps& steps() { return steps_; }
  const PeerMemory& peer_memory() const { return peer_memory_; }

  // Peers that wait for this rank from now on learn that it has left, and why. Nothing but the
  // destructor follows.
  void Leave(const std::string& why) { arena_->Leave(why); }

 private:
  const std::unique_ptr<Arena> arena_;
  Waiter waiter_;
  ShmTransport transport_;
  SlotSteps steps_;
  PeerMemory peer_memory_;
};

}  // namespace mydist::shm
