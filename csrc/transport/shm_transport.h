// ShmTransport: moves bytes between the ranks of one host through rings in shared memory.
// Owned by the ShmPort; called like any Transport. Ranks are indices in the arena. For what has no
// algorithm of its own in shared memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memory/shm/arena.h"
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

}  // namespace mydist::shm
