// PeerMemory: reaches the tensors of the other ranks of the host where they lie: in the heap, or
// through the kernel. Owned by the ShmPort; used by the thread that drives the engine. Ranks are
// indices in the arena. What a peer says is checked: a wrong place is an error, never a crash.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <type_traits>

#include "base/status.h"
#include "memory/shm/arena.h"
#include "memory/shm/arena_layout.h"
#include "memory/shm/waiter.h"

namespace mydist::shm {

// Place: the position of a rank's memory as its peers address it. It travels in the posts of
// SlotSteps, so its readers check it.

enum class PlaceKind : uint8_t {
  kUnreachable = 0,  // Only its owner can read it.
  kSlot,             // It has been copied into the slot of this step.
  kHeap,             // `position`: offset in the owner's zone of the heap.
  kPrivate,          // `position`: address in the owner's process.
};

struct Place {
  PlaceKind kind = PlaceKind::kUnreachable;
  int64_t position = 0;

  // `bytes` further on.
  Place At(int64_t bytes) const { return {kind, position + bytes}; }
};

// The content of a post of a collective that works on tensors in place.
struct PlaceMessage {
  Place input;
  Place output;
};

static_assert(std::is_trivially_copyable_v<PlaceMessage>);

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

// CrossMemory: reading and writing private memory of another process of the same user through the
// kernel. Stateless but for the probe's target; any thread.

namespace mydist::shm::cross_memory {

// Copies `bytes` at `address` of process `pid` to `memory`, or the other way. Returns errno, or 0
// when all of it was copied. Blocks until then.
int Read(pid_t pid, uint64_t address, void* memory, int64_t bytes);
int Write(pid_t pid, uint64_t address, const void* memory, int64_t bytes);

// Whether all of these bytes of this process are mapped.
bool IsMapped(const void* memory, int64_t bytes);

// Memory of this process for peers to try their hands on; holds `nonce` from now on.
uint64_t ProbeAddress(const Nonce& nonce);

// Whether the target of process `pid` at `address` can be read and written, and is the one that
// holds `nonce`. Empty, or why not.
std::string Probe(pid_t pid, uint64_t address, const Nonce& nonce);

}  // namespace mydist::shm::cross_memory
