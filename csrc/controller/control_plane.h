// ControlPlane: moves control messages between the ranks of a job; implemented by the backends.
// Owned by the engine. All methods but Wake are called by whoever drives the engine, one thread at
// a time; Wake may be called from any thread at any time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace mydist {

using Bytes = std::vector<uint8_t>;

struct IncomingMessage {
  int source = -1;  // Rank that sent it.
  Bytes payload;
};

// Longest message a backend accepts and must deliver.
inline constexpr int64_t kMaxControlMessageBytes = int64_t{64} << 20;

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  // Hands `payload` over for delivery to rank `peer` (never self). Does not wait for the receiver,
  // however busy it is; messages of one pair arrive complete, once and in order.
  // kPeerLost when the connection is known to be closed.
  virtual Status Send(int peer, Bytes payload) = 0;

  // Waits until a message is there, Wake is called, or `deadline` passes (kNever: no limit; a
  // deadline in the past: just looks). Returns the message, or nothing. Blocks without burning CPU.
  // kPeerLost, naming the rank, when a connection broke: messages received before are returned
  // first, and a lost peer is reported once.
  virtual Result<std::optional<IncomingMessage>> Receive(TimePoint deadline) = 0;

  // Makes the present or the next Receive return. Thread-safe, cheap, never blocks.
  virtual void Wake() = 0;

  // Flushes what Send accepted (bounded by `deadline`) and closes the connections in an orderly
  // way. No other call but the destructor follows.
  virtual Status Close(TimePoint deadline) = 0;
};

}  // namespace mydist
