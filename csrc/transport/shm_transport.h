// ShmTransport: moves bytes between the ranks of one host through rings in shared memory.
// Owned by the ShmPort; called like any Transport. Ranks are indices in the arena. For what has no
// algorithm of its own in shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/export.h"
#include "memory/shm/arena.h"
#include "memory/shm/peer_memory.h"
#include "memory/shm/waiter.h"
#include "transport/transport.h"

namespace mydist::shm {

class ShmTransport final : public Transport {
 public:
  // Both outlive this object.
  ShmTransport(Arena* arena, Waiter* waiter);

  int rank() const override { return index_; }
  int size() const override { return arena_->size(); }
  // Errors name ranks of the job; kPeerLost, kInternal for a peer that says what cannot be.
  // Allocates nothing once the largest call has been seen.
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override;

 private:
  // A transfer that is not complete; those with one peer are in order.
  struct Open {
    int peer;
    uint8_t* memory;  // What is left of it.
    int64_t bytes;
  };

  void Post(std::span<const SendTransfer> sends, std::span<const ReceiveTransfer> receives);
  void FindPartners();
  // Moves what can be moved with the oldest transfer of each peer; false when that is nothing.
  template <typename MovePiece>
  bool Move(std::vector<Open>& open, MovePiece move);
  bool MoveAll();
  int64_t Push(const Open& send);
  int64_t Pull(const Open& receive);
  bool CanMove();
  int64_t BytesInRing(int peer, uint64_t produced, uint64_t consumed);
  int64_t RoomFor(int peer);
  int64_t WaitingFrom(int peer);
  Status WrongCounters() const;
  Status AwaitMove();

  Arena* const arena_;
  Waiter* const waiter_;
  const int index_;
  std::optional<int> wrong_peer_;  // What it says of its rings cannot be.
  // Kept between calls for their memory only.
  std::vector<int> partners_;  // Whom the call exchanges bytes with.
  std::vector<Open> sends_;
  std::vector<Open> receives_;
  std::vector<bool> is_taken_;  // Of each peer: an older transfer is not complete.
  std::vector<int> needed_;
};

// ShmPort: one rank's way into the shared memory of its host: the arena and what works on it.
// Owned by the engine; shared by the collectives of all process sets, which are driven by one
// caller at a time.
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

  // From now on waits for other ranks in the middle of a collective ask it.
  void SetWatchdog(Watchdog* watchdog) { waiter_.SetWatchdog(watchdog); }

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
