// PeerMemory: reaches the tensors of the other ranks of the host where they lie: in the heap, or
// through the kernel. Owned by the ShmPort; used by whoever drives the engine. Ranks are indices in
// the arena. What a peer says is checked: a wrong place is an error, never a crash.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "memory/shm/arena.h"
#include "memory/shm/place.h"
#include "memory/shm/waiter.h"

namespace mydist::shm {

enum class Attach {
  kWherePossible,
  kWherePreferred,  // There is a way through slots, which is faster while every rank has a core.
};

class PeerMemory {
 public:
  // Both outlive this object.
  PeerMemory(const Arena* arena, Waiter* waiter) : arena_(arena), waiter_(waiter) {}

  // Which of their tensors ranks can reach; the same on all of them.
  bool HasHeap() const { return arena_->heap() != nullptr; }
  bool CanAttach(Attach attach = Attach::kWherePossible) const {
    return arena_->attach_refusal().empty() &&
           (attach == Attach::kWherePossible || arena_->prefers_attach());
  }

  // Where these own bytes lie: kHeap, kPrivate or kUnreachable. No bytes are reachable.
  Place PlaceOf(const void* memory, int64_t bytes, Attach attach = Attach::kWherePossible) const;

  // Bytes of a peer that lie in the heap. kInternal when they do not.
  Result<uint8_t*> View(int peer, const Place& place, int64_t bytes) const;
  // Copies from or to kHeap or kPrivate. kPeerLost when the peer has died meanwhile; kInternal.
  Status Read(int peer, const Place& place, void* memory, int64_t bytes) const;
  Status Write(int peer, const Place& place, const void* memory, int64_t bytes) const;

 private:
  // Until the end of a process is known for sure.
  static constexpr std::chrono::milliseconds kDeathGrace{250};
  // The same where the kernel says that the process is gone: its lock is, soon, unless the kernel
  // does not tell of locks.
  static constexpr std::chrono::seconds kLockGrace{10};

  struct Transfer {
    const Place& place;  // The peer's.
    const void* memory;  // Our own.
    int64_t bytes;
  };
  Status Outcome(int peer, const Transfer& transfer, int error) const;

  const Arena* const arena_;
  Waiter* const waiter_;
};

}  // namespace mydist::shm
