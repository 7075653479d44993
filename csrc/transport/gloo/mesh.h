// Mesh: everything the two planes of one Gloo job share: the connections, what is known about the
// peers, the frames on their way out and the mailbox of those that came in.
// Owned jointly by control plane and transport; the last one closes the connections. Thread-safe.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/own_sockets.h"
#include "base/status.h"
#include "gloo/transport/context.h"
#include "gloo/transport/unbound_buffer.h"
#include "transport/control_plane.h"
#include "transport/gloo/peer_states.h"
#include "transport/gloo/wire.h"
#include "transport/mailbox.h"

namespace mydist {

// Gloo has no "wait for ever", and a wait of Gloo's that times out closes every connection.
inline constexpr std::chrono::milliseconds kGlooForever =
    std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::hours(24 * 365 * 10));

using GlooBuffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

// GlooContext: the connected mesh of Gloo pairs, one per peer, behind a face without exceptions.
// Owned jointly by the control plane and the transport. Thread-safe.
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
  OwnSockets sockets_;  // The last: it forgets them before Gloo closes them.
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

// Outbox: control frames on their way to one peer. A frame's memory is kept until the peer has
// acknowledged it, because Gloo cannot be asked whether a send is complete without waiting for it.
// Acknowledgements ride on frames going the other way; a one-sided conversation gets one of its own
// every kAcknowledgeFrames frames or kAcknowledgeBytes bytes.
// Owned by the mesh. Thread-safe: the engine sends, the peer's receiver thread acknowledges.
class Outbox {
 public:
  Outbox(GlooContext* context, int peer) : context_(context), peer_(peer) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Hands a frame over without waiting for the receiver. kPeerLost with Gloo's words when the
  // connection is closed, kAborted after a goodbye was sent: no frame may follow it.
  Status Send(FrameKind kind, Bytes payload, int cause_rank = -1) MYDIST_EXCLUDES(mutex_);

  // The peer has received our first `count` frames.
  void Acknowledge(uint64_t count) MYDIST_EXCLUDES(mutex_);

  // A frame with `payload_bytes` arrived from the peer; acknowledges it when it is time.
  Status NoteReceived(int64_t payload_bytes) MYDIST_EXCLUDES(mutex_);

  // Waits until everything is with the operating system. kTimeout at `deadline`; that also breaks
  // all connections, so only the end of a conversation may flush.
  Status Flush(TimePoint deadline) MYDIST_EXCLUDES(mutex_);

 private:
  static constexpr uint64_t kAcknowledgeFrames = 32;
  static constexpr int64_t kAcknowledgeBytes = int64_t{1} << 20;

  struct Sent {
    Bytes bytes;
    GlooBuffer buffer;
    int pieces = 1;
  };

  Status SendLocked(FrameKind kind, Bytes payload, int cause_rank) MYDIST_REQUIRES(mutex_);

  GlooContext* const context_;
  const int peer_;
  Mutex mutex_;
  std::deque<Sent> unacknowledged_ MYDIST_GUARDED_BY(mutex_);  // Oldest first.
  uint64_t acknowledged_count_ MYDIST_GUARDED_BY(mutex_) = 0;
  uint64_t received_count_ MYDIST_GUARDED_BY(mutex_) = 0;
  uint64_t unannounced_count_ MYDIST_GUARDED_BY(mutex_) = 0;  // Received, not yet acknowledged.
  int64_t unannounced_bytes_ MYDIST_GUARDED_BY(mutex_) = 0;
  bool said_goodbye_ MYDIST_GUARDED_BY(mutex_) = false;
};

class Mesh {
 public:
  // `places` says for every rank where it runs, e.g. "host a, pid 17"; for messages.
  Mesh(std::unique_ptr<GlooContext> context, std::vector<std::string> places);

  int rank() const { return context_->rank(); }
  int size() const { return context_->size(); }
  GlooContext& context() { return *context_; }
  PeerStates& states() { return states_; }
  Mailbox& mailbox() { return mailbox_; }
  Outbox& outbox(int peer) { return *outboxes_[static_cast<size_t>(peer)]; }

  // "rank 3 (host a, pid 17)"
  std::string Name(int peer) const;

  // That the connection to `peer` broke without a goodbye; `what` says how it showed.
  Status LostConnection(int peer, const std::string& what) const;

  // Records a loss, tells the engine (once per peer) and interrupts its transfers.
  void ReportLoss(int peer, const Status& reason);

  // What SayGoodbye gives as the reason where no connection was lost. Called by its caller.
  // They also count where they tell more of the rank whose connection was lost.
  void SetFarewell(const std::string& why);

  // Tells every open peer that we leave, and why unless it is the job's end; then waits until all
  // have said goodbye too and our messages are out. kTimeout naming the ranks that did not, or the
  // loss.
  Status SayGoodbye(TimePoint deadline);

  // After a failed transfer the connections are unusable: says goodbye with the cause, so that the
  // peers blame the right rank and not us, and drops all connections. Bounded by kBreakGrace. The
  // error may know more of the cause than the loss that was reported.
  void Break(const Status& error);

 private:
  static constexpr std::chrono::milliseconds kBreakGrace{200};

  const std::unique_ptr<GlooContext> context_;
  const std::vector<std::string> places_;
  PeerStates states_;
  Mailbox mailbox_;
  std::string farewell_;
  std::vector<std::unique_ptr<Outbox>> outboxes_;  // Element rank() is unused.
};

}  // namespace mydist
