// IncomingStream: puts the control messages of one peer together again.
// Owned by the plane, used by whoever holds the engine role. What the peer announces is checked
// before memory is allocated for it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "transport/control_plane.h"
#include "transport/local/control_ring.h"

namespace mydist::local {

// Precedes every message.
struct MessageHeader {
  uint32_t magic;
  uint32_t payload_bytes;
};
inline constexpr uint32_t kMessageMagic = 0x314c646d;  // "mdL1"

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

}  // namespace mydist::local
