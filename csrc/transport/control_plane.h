// ControlPlane: moves control messages between the ranks of a job; implemented by the backends.
// Owned by the engine. The thread that holds the engine role calls Send, CheckPeer, Receive, Attend
// and Close, one thread at a time. Waiting needs no role: one thread at a time is in Await (see
// engine/watch_seat.h), with the role or beside the thread that holds it. Wake may be called from
// any thread at any time.
// News: a message or a loss that Receive has yet to return.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace mydist {

using Bytes = std::vector<uint8_t>;

struct IncomingMessage {
  int source = -1;  // Rank that sent it.
  Bytes payload;
};

// Longest message a backend accepts and must deliver.
inline constexpr int64_t kMaxControlMessageBytes = int64_t{64} << 20;

// Whether a backend may accept it.
inline Status CheckControlMessage(const Bytes& payload) {
  if (static_cast<int64_t>(payload.size()) <= kMaxControlMessageBytes) return Status::Ok();
  return Status::Internal("a control message of " + std::to_string(payload.size()) +
                          " bytes is longer than the limit of " +
                          std::to_string(kMaxControlMessageBytes) +
                          "; submit fewer tensors at once");
}

inline constexpr size_t kMaxFarewellBytes = 1024;

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  // Hands `payload` over for delivery to rank `peer` (never self). Does not wait for the receiver,
  // however busy it is; messages of one pair arrive complete, once and in order.
  // kPeerLost when the connection is known to be closed.
  virtual Status Send(int peer, Bytes payload) = 0;

  // kPeerLost when the connection to rank `peer` (never self) is known to be closed, in order too:
  // for a rank that needs the peer and has nothing to send. Never waits. OK where that is not
  // known.
  virtual Status CheckPeer(int /*peer*/) { return Status::Ok(); }

  // A message that is there, or nothing; never waits, and is cheap enough to be called in a spin
  // loop, which alone makes messages arrive. kPeerLost, naming the rank, when a connection broke:
  // messages received before are returned first, and a lost peer is reported once.
  virtual Result<std::optional<IncomingMessage>> Receive() = 0;

  // Blocks, without burning CPU, until there is news, Wake is called, or `deadline` passes (kNever:
  // no limit; in the past: returns at once). Returns at once while there is news that no call has
  // taken, except while attended; may return for no reason, rarely. Uses up the wakes so far. Takes
  // no messages out. One thread at a time, beside the role holder; none when Close is called.
  virtual void Await(TimePoint deadline) = 0;

  // Makes the present or the next Await return, attended or not. Thread-safe, cheap, never blocks.
  virtual void Wake() = 0;

  // While attended (false at first), a thread calls Receive again and again: news need not end
  // Await, which saves its thread from being woken for nothing. When attention ends, news that is
  // there or comes later ends Await again; a thread that polls for it may take up to a millisecond,
  // unless Wake follows. Called around every synchronous collective, hence cheap.
  virtual void Attend(bool attended) = 0;

  // Ends the present or the next Await of `peer`, on this host, as news does, though there is no
  // message. Sees to it that the peer sees what this rank wrote before. Cheap, never blocks. Called
  // only where ranks of a host share memory.
  virtual void Nudge(int /*peer*/) { MYDIST_CHECK(false); }

  // What peers that still need this rank when it has closed are told, as FarewellWords. Empty, the
  // default: the job's end. May be cut to kMaxFarewellBytes.
  virtual void SetFarewell(const std::string& /*why*/) {}

  // The words with which `peer` has left, as far as they have come. Empty while it is there, at the
  // job's end, and where that is not known. Thread-safe.
  virtual std::string FarewellOf(int /*peer*/) const { return ""; }

  // Flushes what Send accepted (bounded by `deadline`) and closes the connections in an orderly
  // way. No other call but Wake and the destructor follows.
  virtual Status Close(TimePoint deadline) = 0;
};

}  // namespace mydist
