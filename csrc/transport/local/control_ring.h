// RingWriter and RingReader: the two ends of the ring from one rank to another.
// Owned by the outbox and by the incoming stream; one thread at a time each. What the peer says in
// shared memory is checked; where we are ourselves is kept here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "memory/shm/arena_layout.h"

namespace mydist::local {

// ControlMemory: the part of a host's arena through which control messages travel.
// One view per plane, a value; thread-safe, as it only says where things are. Ranks are indices in
// the arena. Each line has one writer, but for the bells; counters only grow; all zeros at first.
// See docs/decisions/0010-local-control-plane.md.

enum class PlaneState : uint32_t { kOpen = 0, kClosed, kBroken };

// Whether news has to be rung for: by its rank only.
inline constexpr uint32_t kSleeps = 1;    // A thread is in Await.
inline constexpr uint32_t kAttended = 2;  // Somebody looks for news all the time.

// Written by its rank.
struct alignas(shm::kLineBytes) ControlLine {
  std::atomic<uint32_t> waiting;  // kSleeps, kAttended.
  std::atomic<PlaneState> state;
};

// What one rank tells another.
struct alignas(shm::kLineBytes) ControlPair {
  std::atomic<uint64_t> produced;    // Bytes put into the ring from writer to reader.
  std::atomic<uint64_t> consumed;    // Bytes taken out of the ring from reader to writer.
  std::atomic<uint32_t> wants_room;  // 1: the writer is to be rung when the reader has made room.
};

class ControlMemory {
 public:
  ControlMemory(uint8_t* memory, int ranks) : memory_(memory), ranks_(ranks) {}

  static int64_t RingBytes(int ranks) {
    return std::clamp<int64_t>((int64_t{1} << 20) / ranks, 4 << 10, 64 << 10);
  }
  static int64_t Bytes(int ranks) { return ControlMemory(nullptr, ranks).RingOffset(ranks, 0); }

  int ranks() const { return ranks_; }
  int64_t ring_bytes() const { return RingBytes(ranks_); }

  ControlLine& line(int rank) const { return At<ControlLine>(LineOffset(0, rank)); }
  shm::Bell& news_bell(int rank) const { return At<shm::Bell>(LineOffset(1, rank)); }
  shm::Bell& room_bell(int rank) const { return At<shm::Bell>(LineOffset(2, rank)); }
  ControlPair& pair(int writer, int reader) const {
    return At<ControlPair>(LineOffset(3, int64_t{writer} * ranks_ + reader));
  }
  std::span<uint8_t> ring(int from, int to) const {
    return {memory_ + RingOffset(from, to), static_cast<size_t>(ring_bytes())};
  }

 private:
  int64_t LineOffset(int part, int64_t index) const {
    return (int64_t{part} * ranks_ + index) * shm::kLineBytes;
  }
  int64_t RingOffset(int from, int to) const {
    return LineOffset(3, int64_t{ranks_} * ranks_) + (int64_t{from} * ranks_ + to) * ring_bytes();
  }
  template <typename T>
  T& At(int64_t offset) const {
    return *reinterpret_cast<T*>(memory_ + offset);
  }

  uint8_t* memory_;
  int ranks_;
};

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
