// GlooContext: the connected mesh of Gloo pairs, one per peer, behind a face without exceptions.
// Owned jointly by the control plane and the transport. Thread-safe.
#pragma once

#include <sched.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "gloo/transport/context.h"
#include "gloo/transport/unbound_buffer.h"
#include "transport/control_plane.h"

namespace mydist {

// Gloo has no "wait for ever", and a wait of Gloo's that times out closes every connection.
inline constexpr std::chrono::milliseconds kGlooForever =
    std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::hours(24 * 365 * 10));

using GlooBuffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

class GlooContext {
 public:
  // Listens on the numeric `address` for every peer. kInternal when that fails.
  static Result<std::unique_ptr<GlooContext>> Listen(int rank, int size, const std::string& address,
                                                     std::chrono::milliseconds connect_timeout);

  // Where the peers reach us: one address per rank, concatenated.
  Bytes Addresses() const;
  // Connects to all peers given everybody's Addresses() in rank order; blocks until connected.
  // kTimeout naming the first rank that cannot be reached, kInternal for malformed addresses.
  Status Connect(const std::vector<Bytes>& addresses_by_rank);

  // What a rank says first over a connection; secret until then.
  using Greeting = std::array<uint8_t, 16>;
  // Makes sure that a peer is at the other end of each connection, given everybody's greeting in
  // rank order: Gloo takes any connection for the peer's. kPeerLost names the first connection that
  // is wrong; the context is of no use then.
  Status Greet(const std::vector<Greeting>& greetings, std::chrono::milliseconds limit);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Memory for Gloo to send from or receive into; `data` must outlive the buffer. Destroying the
  // buffer waits until Gloo no longer touches the memory.
  GlooBuffer MakeBuffer(void* data, int64_t bytes);

  // Drops the connection to `peer` at once.
  void ClosePair(int peer);

 private:
  GlooContext(int rank, int size) : rank_(rank), size_(size) {}

  const int rank_;
  const int size_;
  std::shared_ptr<gloo::transport::Context> context_;
};

// BatchScheduling: while it lives, threads that the calling one starts do not interrupt others when
// they are woken (SCHED_BATCH): they run on an idle core at once, else when the one there sleeps or
// has had its turn. On the stack, on one thread.

class BatchScheduling {
 public:
  // Nothing where the thread has been given a policy of its own, or the kernel refuses.
  BatchScheduling() {
    const sched_param parameters{};
    is_set_ = sched_getscheduler(0) == SCHED_OTHER &&
              sched_setscheduler(0, SCHED_BATCH, &parameters) == 0;
  }
  ~BatchScheduling() {
    const sched_param parameters{};
    if (is_set_) sched_setscheduler(0, SCHED_OTHER, &parameters);
  }
  BatchScheduling(const BatchScheduling&) = delete;
  BatchScheduling& operator=(const BatchScheduling&) = delete;

 private:
  bool is_set_ = false;
};

}  // namespace mydist
