// Outbox: control frames on their way to one peer. A frame's memory is kept until the peer has
// acknowledged it, because Gloo cannot be asked whether a send is complete without waiting for it.
// Acknowledgements ride on frames going the other way; a one-sided conversation gets one of its own
// every kAcknowledgeFrames frames or kAcknowledgeBytes bytes.
// Owned by the mesh. Thread-safe: the engine sends, the peer's receiver thread acknowledges.
#pragma once

#include <cstdint>
#include <deque>

#include "base/mutex.h"
#include "transport/gloo/frame.h"
#include "transport/gloo/gloo_context.h"

namespace mydist {

class Outbox {
 public:
  Outbox(GlooContext* context, int peer) : context_(context), peer_(peer) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Hands a frame over without waiting for the receiver. kPeerLost when the connection is closed,
  // kAborted after a goodbye was sent: no frame may follow it.
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

}  // namespace mydist
