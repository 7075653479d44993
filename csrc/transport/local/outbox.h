// Outbox: sends control messages through the rings to the peers, and keeps what does not fit.
// Owned by the plane. Whoever holds the engine role sends; a courier thread of the outbox's own,
// started with the first message that does not fit, sends the rest when a peer has made room, as
// the role holder may be in a collective which that peer comes to only after the message.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "transport/control_plane.h"
#include "transport/local/control_ring.h"

namespace mydist::local {

// IncomingStream: puts the control messages of one peer together again.
// Owned by the plane, used by whoever holds the engine role. What the peer announces is checked
// before memory is allocated for it.

// Precedes every message.
struct MessageHeader {
  uint32_t magic;
  uint32_t payload_bytes;
};
inline constexpr uint32_t kMessageMagic = 0x314c646d;  // "mdL1"

// A wait on a bell that only the bell ends.
inline constexpr std::chrono::hours kUnlimited{24 * 365};

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

class Outbox {
 public:
  // `on_empty` is called each time the last of what was kept is gone: by the courier, or by who
  // calls Abandon.
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

}  // namespace mydist::local
