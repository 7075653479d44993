// What ranks tell each other over Gloo and, around their connections, through the job's rendezvous:
// as bytes and back. Pure; used by the mesh and by the plugin's Connect.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/control_plane.h"

namespace mydist {

// What a rank says first over a connection; secret until then.
using Greeting = std::array<uint8_t, 16>;

// Before they connect.
struct Place {
  std::string host_id;
  std::string pid;  // Without a colon.
  Greeting greeting{};

  bool operator==(const Place&) const = default;
};

std::vector<uint8_t> EncodePlace(const Place& place);
// Of any bytes: what they lack is empty, and a wrong greeting fails later.
Place DecodePlace(const std::vector<uint8_t>& bytes);

// After an attempt to connect.
struct Outcome {
  Status status;           // Of all ranks together: of the first one where it is not OK.
  bool may_repeat = true;  // All ranks together: on each of them.
};

std::vector<uint8_t> EncodeOutcome(const Outcome& outcome);
// Nothing when the bytes are no outcome.
std::optional<Outcome> DecodeOutcome(const std::vector<uint8_t>& bytes);

// What precedes every control message between two ranks.
enum class FrameKind : uint32_t {
  kMessage = 1,
  kAcknowledge = 2,  // Only carries received_count.
  kGoodbye = 3,      // Nothing follows; the connection closes in an orderly way. Its message is the
                     // reason as text, empty at the job's end.
};

// A frame and the first bytes of its message travel as one "eager" piece into a receive that is
// always posted; what does not fit follows as a second piece into a receive posted on demand.
// Native byte order, like Gloo's own messages; a peer of the other order fails the magic check.
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

}  // namespace mydist
