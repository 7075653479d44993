// LocalControlPlane: ControlPlane among the ranks of one host, through their arena (negotiate).
// Nothing polls and nothing has to be installed. Ranks are those of the job; only those of this
// host can be reached. See docs/decisions/0010-local-control-plane.md.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "memory/shm/arena_layout.h"
#include "transport/control_plane.h"
#include "transport/local/peer_watcher.h"
#include "transport/shm_transport.h"

namespace mydist::local {

// RingWriter and RingReader: the two ends of the ring from one rank to another.
// Owned by the outbox and by the incoming stream; one thread at a time each. What the peer says in
// shared memory is checked; where we are ourselves is kept here.

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

// ControlMemory: the part of a host's arena through which control messages travel.
// One view per plane, a value; thread-safe, as it only says where things are. Ranks are indices in
// the arena. Each line has one writer, but for the bells; counters only grow; all zeros at first.
// See docs/decisions/0010-local-control-plane.md.
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

// Precedes every message.
struct MessageHeader {
  uint32_t magic;
  uint32_t payload_bytes;
};
inline constexpr uint32_t kMessageMagic = 0x314c646d;  // "mdL1"

// A wait on a bell that only the bell ends.
inline constexpr std::chrono::hours kUnlimited{24 * 365};

// IncomingStream: puts the control messages of one peer together again.
// Owned by the plane, used by the thread with the engine role. What the peer announces is checked
// before memory is allocated for it.
class IncomingStream {
 public:
  IncomingStream(const ControlMemory& memory, int self, int peer) : ring_(memory, self, peer) {}

  // Whether the ring holds anything. Any thread.
  bool HasBytes() const { return ring_.HasBytes(); }

  // The next complete message, or nothing. kInternal, to be put after the peer's name, when what is
  // there is no message; nothing more can be taken then.
  Result<std::optional<Bytes>> Next();

  // Since the last call: room was made for which the peer wants to be rung.
  bool TakeWantsRing() { return std::exchange(wants_ring_, false); }

 private:
  // Fills what is missing of `whole`; true when it is complete.
  Result<bool> Fill(std::span<uint8_t> whole, size_t& have);
  Status BeginPayload();

  RingReader ring_;
  std::array<uint8_t, sizeof(MessageHeader)> header_{};
  size_t header_have_ = 0;
  Bytes payload_;
  size_t payload_have_ = 0;
  bool wants_ring_ = false;
};

// Outbox: sends control messages through the rings to the peers, and keeps what does not fit.
// Owned by the plane. The thread with the engine role sends; a courier thread of the outbox's own,
// started with the first message that does not fit, sends the rest when a peer has made room, as
// the role holder may be in a collective which that peer comes to only after the message.
class Outbox {
 public:
  // `on_empty` is called each time the last of what was kept is gone: by the courier, or by the
  // thread that calls Abandon.
  Outbox(const ControlMemory& memory, int self, std::function<void()> on_empty);
  // Drops what is left.
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Never waits for the peer. kInternal when no thread can be had for what does not fit.
  Status Send(int peer, Bytes payload) MYDIST_EXCLUDES(mutex_);
  // `peer` is dead: drops what is kept for it, and what is still to come.
  void Abandon(int peer) MYDIST_EXCLUDES(mutex_);
  bool IsEmpty() MYDIST_EXCLUDES(mutex_);

 private:
  struct Parcel {
    std::array<uint8_t, sizeof(MessageHeader)> header;
    Bytes payload;
    size_t sent = 0;  // Of both together.
  };
  struct Lane {
    RingWriter ring;
    std::deque<Parcel> parcels;  // What is left, oldest first.
    bool is_abandoned = false;
  };

  // Sends what fits; true when the parcel is complete.
  bool Push(int peer, Parcel& parcel) MYDIST_REQUIRES(mutex_);
  void Drop(Lane& lane) MYDIST_REQUIRES(mutex_);
  void RingFor(int peer);
  Status StartCourier() MYDIST_REQUIRES(mutex_);
  void RunCourier() MYDIST_EXCLUDES(mutex_);
  // Sends what the rings take now. True when that was the last of what was kept.
  bool Deliver() MYDIST_EXCLUDES(mutex_);
  bool CanDeliver() MYDIST_EXCLUDES(mutex_);

  const ControlMemory memory_;
  const int self_;
  const std::function<void()> on_empty_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<Lane> lanes_ MYDIST_GUARDED_BY(mutex_);
  int kept_count_ MYDIST_GUARDED_BY(mutex_) = 0;  // Parcels in all lanes.
  std::thread courier_;
};

class LocalControlPlane final : public ControlPlane {
 public:
  // The port's arena has room for the plane and no other uses it. kInternal when a thread or
  // descriptor is missing.
  static Result<std::unique_ptr<LocalControlPlane>> Open(std::shared_ptr<shm::ShmPort> port);
  // Without Close before, the peers take this rank for lost.
  ~LocalControlPlane() override;

  // Whether `rank` of the job is on this host, ourselves included.
  bool Reaches(int rank) const;
  Status Send(int peer, Bytes payload) override;
  Status CheckPeer(int peer) override;
  Result<std::optional<IncomingMessage>> Receive() override;
  void Await(TimePoint deadline) override;
  void Wake() override;
  void Attend(bool attended) override;
  void Nudge(int peer) override;
  Status Close(TimePoint deadline) override;

 private:
  struct Peer {
    Peer(const ControlMemory& memory, int self, int index) : stream(memory, self, index) {}

    IncomingStream stream;
    std::atomic<bool> has_ended{false};  // Its process; set by the watcher.
    std::atomic<bool> is_over{false};    // Its loss has been reported.
  };

  explicit LocalControlPlane(std::shared_ptr<shm::ShmPort> port);

  Result<std::optional<Bytes>> ReceiveFrom(int index);
  // Whether a peer went without a goodbye.
  bool IsLost(int index) const;
  bool HasNews() const;
  void RingOwn(uint32_t waiting);
  void HandleEnd(int index);
  Status Lost(int index);
  // A lost peer, if there is one that is not reported yet: the cause of others having left.
  Status FindCause();
  // Takes what comes in while closing, as peers may wait for the room.
  void Discard();
  void Leave(PlaneState state);
  std::string Name(int index) const;

  const std::shared_ptr<shm::ShmPort> port_;
  const ControlMemory memory_;
  const int index_;
  std::vector<std::unique_ptr<Peer>> peers_;  // Null for ourselves.
  uint32_t seen_rings_ = 0;                   // Of the own bell, by Await.
  int next_ = 0;                              // Whom Receive looks at first.
  Status loss_;                               // The first one reported.
  bool is_closed_ = false;
  std::atomic<bool> is_woken_{false};
  Outbox outbox_;
  std::unique_ptr<PeerWatcher> watcher_;  // Last: its thread uses all of the above.
};

}  // namespace mydist::local
