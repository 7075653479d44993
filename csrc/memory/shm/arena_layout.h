// ArenaLayout: where everything lies in the memory that the ranks of one host share. Pure.
// Ranks are indices among the host's ranks here. Each line of kLineBytes has one writer, but for
// the bells; counters only grow. See docs/decisions/0006-shared-memory-arena.md.
#pragma once

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace mydist::shm {

// Nonce: random bytes by which the ranks of a host tell one file, or one process, from another.
// Pure value; drawn by any thread.
using Nonce = std::array<uint8_t, 16>;

inline Nonce RandomNonce() {
  Nonce nonce{};
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    // Unlikely enough to be told apart by the pid alone.
    const int64_t pid = getpid();
    std::memcpy(nonce.data(), &pid, sizeof pid);
  }
  return nonce;
}

// Two cache lines: processors fetch them in pairs.
inline constexpr int64_t kLineBytes = 128;
inline constexpr int64_t kPageBytes = 4096;
// Zones of the heap begin and end at multiples of this: a huge page.
inline constexpr int64_t kHeapGrainBytes = int64_t{2} << 20;
inline constexpr uint64_t kArenaMagic = 0x6d79646973743031;

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

struct ArenaHeader {
  uint64_t magic;
  Nonce cookie;        // What the handshake compares.
  int64_t zone_bytes;  // Of each rank's part of the heap; 0: no heap.
};

// What the ranks of the host write together.
struct alignas(kLineBytes) HostLine {
  std::atomic<bool> has_warned;  // That tensors find no room.
};

enum class Presence : uint32_t { kAbsent = 0, kHere, kLeft };

// Written by its rank.
struct alignas(kLineBytes) RankLine {
  std::atomic<uint32_t> asleep;  // 1: asleep on the bell, or about to be.
  std::atomic<Presence> presence;
  std::atomic<int64_t> pid;
  Nonce process;  // Of the process, as pids mean nothing in another namespace.
  std::atomic<uint64_t> probe_address;         // See peer_memory.h.
  std::atomic<bool> accepts_sleeper_barriers;  // See waiter.h.
  std::atomic<bool> prefers_attach;            // Private tensors are read where they lie.
};

// Rung by peers, while its rank is asleep.
struct alignas(kLineBytes) Bell {
  std::atomic<uint32_t> rings;  // A futex.
};

// Written by its rank; see planner/collectives_choice.cc.
struct alignas(kLineBytes) VoteLine {
  static constexpr size_t kWords = 2;
  std::atomic<uint64_t> words[kWords];
};

// Why a rank left, where it is not the job's end. Written by its rank before it says that it left.
inline constexpr int64_t kLastWordsBytes = 1024;
struct alignas(kLineBytes) LastWords {
  uint32_t length;
  std::array<char, kLastWordsBytes - sizeof(uint32_t)> text;
};
static_assert(sizeof(LastWords) == kLastWordsBytes);

// What a rank has completed last; see arena.h. Written by its rank, read when it has died or is
// stopped.
struct alignas(kLineBytes) DoneLine {
  static constexpr size_t kNameWords = 29;
  std::atomic<uint64_t> version;  // Odd while it is written; 0: it has completed none.
  std::atomic<uint64_t> number;
  std::atomic<uint64_t> op_and_length;  // The length, in bytes, from bit 8 on.
  std::array<std::atomic<uint64_t>, kNameWords> name;
};
static_assert(sizeof(DoneLine) == 2 * kLineBytes);

// A step as one rank posts it to another. The message's first 48 bytes share a cache line with the
// flag.
inline constexpr int64_t kMessageBytes = 112;
struct alignas(kLineBytes) PostLine {
  std::atomic<uint64_t> step;
  uint8_t half;  // Of the slot. Like the message written before `step`, and read after.
  alignas(16) std::array<uint8_t, kMessageBytes> message;
};
static_assert(sizeof(PostLine) == kLineBytes);

// What one rank tells another.
struct alignas(kLineBytes) PairLine {
  // Step n is at n % 2: step n + 2 is not posted before the reader has posted n + 1, and so has
  // read n.
  std::array<PostLine, 2> posts;
  alignas(kLineBytes) std::atomic<uint64_t> done;  // Steps whose slot the writer has read.
  std::atomic<uint64_t> produced;                  // Bytes put into the ring from writer to reader.
  std::atomic<uint64_t> consumed;  // Bytes taken out of the ring from reader to writer.
};

// To whole units, of what is not negative.
constexpr int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }
constexpr int64_t RoundDown(int64_t bytes, int64_t unit) { return bytes / unit * unit; }

class ArenaLayout {
 public:
  // `slot_bytes`: of one half of a slot. All are rounded up to whole lines.
  ArenaLayout(int ranks, int64_t slot_bytes, int64_t ring_bytes, int64_t control_bytes)
      : ranks_(ranks),
        slot_bytes_(RoundUp(slot_bytes, kLineBytes)),
        ring_bytes_(RoundUp(ring_bytes, kLineBytes)),
        control_bytes_(RoundUp(control_bytes, kLineBytes)) {}

  int ranks() const { return ranks_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  int64_t ring_bytes() const { return ring_bytes_; }

  // Offsets from the start, in bytes.
  static constexpr int64_t HostLinePlace() { return kLineBytes; }  // After the header.
  int64_t RankLineOf(int rank) const { return kPageBytes + rank * kLineBytes; }
  int64_t BellOf(int rank) const { return RankLineOf(ranks_) + rank * kLineBytes; }
  int64_t VoteLineOf(int rank) const { return BellOf(ranks_) + rank * kLineBytes; }
  int64_t LastWordsOf(int rank) const { return VoteLineOf(ranks_) + rank * kLastWordsBytes; }
  int64_t DoneLineOf(int rank) const {
    return LastWordsOf(ranks_) + rank * static_cast<int64_t>(sizeof(DoneLine));
  }
  int64_t PairLineOf(int writer, int reader) const {
    return DoneLineOf(ranks_) + PairIndex(writer, reader) * static_cast<int64_t>(sizeof(PairLine));
  }
  int64_t SlotOf(int rank, int half) const {
    return PairLineOf(ranks_, 0) + (2 * rank + half) * slot_bytes_;
  }
  int64_t RingOf(int from, int to) const {
    return SlotOf(ranks_, 0) + PairIndex(from, to) * ring_bytes_;
  }
  // What the control plane uses as it likes.
  int64_t ControlMemory() const { return RingOf(ranks_, 0); }
  int64_t bytes() const { return ControlMemory() + control_bytes_; }
  // Where the zones of the heap begin, one after the other.
  int64_t HeapBase() const { return RoundUp(bytes(), kHeapGrainBytes); }

 private:
  int64_t PairIndex(int first, int second) const { return int64_t{first} * ranks_ + second; }

  int ranks_;
  int64_t slot_bytes_;
  int64_t ring_bytes_;
  int64_t control_bytes_;
};

}  // namespace mydist::shm
