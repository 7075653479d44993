// RingWriter and RingReader: the two ends of the ring from one rank to another.
// Owned by the outbox and by the incoming stream; one thread at a time each. What the peer says in
// shared memory is checked; where we are ourselves is kept here.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "transport/local/control_memory.h"

namespace mydist::local {

class RingWriter {
 public:
  RingWriter(const ControlMemory& memory, int self, int peer)
      : own_(&memory.pair(self, peer)),
        theirs_(&memory.pair(peer, self)),
        ring_(memory.ring(self, peer)) {}

  // Puts in what fits and returns how much that is; the peer sees it after Publish.
  size_t Put(std::span<const uint8_t> bytes);
  void Publish() { own_->produced.store(put_, std::memory_order_release); }
  // Free bytes; never more than the ring has, whatever the peer says.
  size_t Room() const;
  // Asks to be rung when there is room, or no more.
  void WantRoom(bool wants);

 private:
  ControlPair* own_;
  ControlPair* theirs_;
  std::span<uint8_t> ring_;
  uint64_t put_ = 0;
};

class RingReader {
 public:
  RingReader(const ControlMemory& memory, int self, int peer)
      : own_(&memory.pair(self, peer)),
        theirs_(&memory.pair(peer, self)),
        ring_(memory.ring(peer, self)) {}

  // Whether there are bytes to take. Any thread.
  bool HasBytes() const {
    return theirs_->produced.load(std::memory_order_acquire) !=
           own_->consumed.load(std::memory_order_relaxed);
  }
  // How many; kInternal when the peer's counter makes no sense.
  Result<size_t> Available() const;
  // Takes as many bytes as `into` has, which are available.
  void Take(std::span<uint8_t> into);
  // Gives back the room of what was taken. True when the peer wants to be rung for it.
  bool Release();

 private:
  ControlPair* own_;
  ControlPair* theirs_;
  std::span<const uint8_t> ring_;
  uint64_t taken_ = 0;
};

}  // namespace mydist::local
