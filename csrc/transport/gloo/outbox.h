// Outbox: control frames on their way to one peer. A frame's memory is kept until the peer has
// acknowledged it, because Gloo cannot be asked whether a send is complete without waiting for it.
// Acknowledgements ride on frames going the other way; a one-sided conversation gets one of its own
// every kAcknowledgeFrames frames or kAcknowledgeBytes bytes.
// Owned by the mesh. Thread-safe: the engine sends, the peer's receiver thread acknowledges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/control_plane.h"
#include "transport/gloo/gloo_context.h"

namespace mydist {

// Frame: what precedes every control message between two ranks over Gloo.
// A frame and the first bytes of its message travel as one "eager" piece into a receive that is
// always posted; what does not fit follows as a second piece into a receive posted on demand.
// Native byte order, like Gloo's own messages; a peer of the other order fails the magic check.

enum class FrameKind : uint32_t {
  kMessage = 1,
  kAcknowledge = 2,  // Only carries received_count.
  kGoodbye = 3,      // Nothing follows; the connection closes in an orderly way. Its message is the
                     // reason as text, empty at the job's end.
};

struct Frame {
  uint32_t magic = 0;
  FrameKind kind = FrameKind::kMessage;
  uint64_t payload_bytes = 0;
  uint64_t received_count = 0;  // Frames received so far from the rank this one goes to.
  int32_t cause_rank = -1;      // Goodbye only: the lost rank that ended the job, or -1.
  uint32_t reserved = 0;
};
static_assert(sizeof(Frame) == 32);

inline constexpr uint32_t kFrameMagic = 0x3147646d;  // "mdG1"

inline constexpr int64_t kEagerBytes = 4096;
inline constexpr int64_t kEagerPayloadBytes = kEagerBytes - int64_t{sizeof(Frame)};

// Gloo slots: messages of one slot and pair arrive in order.
inline constexpr uint64_t kEagerSlot = 1;
inline constexpr uint64_t kRestSlot = 2;
inline constexpr uint64_t kTensorSlot = 3;

// Whether a frame from a peer may be believed; checked before anything is allocated for it.
inline Status CheckFrame(const Frame& frame, int peer) {
  const auto kind = static_cast<uint32_t>(frame.kind);
  if (frame.magic != kFrameMagic || kind < 1 || kind > 3) {
    return Status::Internal("rank " + std::to_string(peer) +
                            " sent data that is not a mydist control message. Another program or "
                            "another version of mydist is connected; start the job again.");
  }
  if (frame.payload_bytes > static_cast<uint64_t>(kMaxControlMessageBytes)) {
    return Status::Internal("rank " + std::to_string(peer) + " announced a control message of " +
                            std::to_string(frame.payload_bytes) + " bytes, at most " +
                            std::to_string(kMaxControlMessageBytes) +
                            " are allowed. Its memory is damaged, or another program sent it.");
  }
  return Status::Ok();
}

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
