// Frame: what workers and servers say to each other: 64 bytes, little-endian, and a payload. Pure.
// Layout:
//   0 magic u32 "MYPS" · 4 version u8 · 5 kind u8 · 6 flags u8 · 7 code u8 · 8 table u32 ·
//   12 piece u32 · 16 worker u32 · 20 epoch u32 · 24 sequence u64 · 32 version u64 · 40 clock u64 ·
//   48 payload bytes u64 · 56 place u64
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/export.h"
#include "base/status.h"

namespace mydist::ps {

inline constexpr uint32_t kFrameMagic = 0x5350594d;  // "MYPS".
inline constexpr uint8_t kFrameVersion = 1;
inline constexpr size_t kFrameBytes = 64;
// Of the payload of one frame, whatever it says.
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{64} << 20;

// The number of no table.
inline constexpr uint32_t kNoTable = UINT32_MAX;

enum class FrameKind : uint8_t {
  // Sent by workers; each but goodbye is answered.
  kDeclare = 1,   // Payload: a TableSpec. Once per table and server, by the first worker.
  kStart = 2,     // Payload: the start values of a piece.
  kOpen = 3,      // Payload: a TableSpec, to be compared with the declared one.
  kPush = 4,      // Payload: a gradient; of rows: their count u64, ids i64, values.
  kPull = 5,      // Payload of rows: their count u64, ids i64.
  kPushPull = 6,  // As a push; answered with the parameters.
  kFinish = 7,    // The worker pushes no more to this table.
  kRemove = 8,    // The table goes, once all its workers have said so.
  kOptions = 9,   // Payload: a RuleSpec with the options to change.
  kPing = 10,     // Answered at once; payload of the answer: what a request waits for, as an error.
  kGoodbye = 11,  // The worker leaves and sends no more. With a code: why, if not in order.
  kResume = 12,   // After a finish: the worker pushes again, from the highest clock on.
  // Sent by servers.
  kAnswer = 32,  // To the request of `sequence`. Payload: parameters, or the text of an error.
  kTaken = 33,   // The payload of `sequence` has been read; its answer comes later.
};

// Whether it brings a gradient, and whether its answer brings parameters.
constexpr bool Pushes(FrameKind kind) {
  return kind == FrameKind::kPush || kind == FrameKind::kPushPull;
}
constexpr bool Pulls(FrameKind kind) {
  return kind == FrameKind::kPull || kind == FrameKind::kPushPull;
}

struct Frame {
  FrameKind kind = FrameKind::kPing;
  // Whether the payload lies in the window that worker and server share, at `place`.
  bool is_in_window = false;
  uint8_t code = 0;  // Of an answer, and of a goodbye: a StatusCode.
  uint32_t table = 0;
  uint32_t piece = 0;     // An answer: microseconds that the request has waited for other workers.
  uint32_t worker = 0;    // Its index in the table's workers.
  uint32_t epoch = 0;     // Of the placement of pieces. An answer: microseconds of the update.
  uint64_t sequence = 0;  // Of the request, from 1, for each worker and server.
  uint64_t version = 0;   // A request: the lowest sequence without an answer. An answer: updates.
  uint64_t clock = 0;     // An answer: the lowest clock of the table's workers.
  uint64_t payload_bytes = 0;
  uint64_t place = 0;

  bool operator==(const Frame&) const = default;
};

using FrameBytes = std::array<uint8_t, kFrameBytes>;

MYDIST_EXPORT FrameBytes EncodeFrame(const Frame& frame);
// A peer sent it. kInternal when it is none, of another version, of no known kind, or has a payload
// above the limit or beyond `window_bytes`.
MYDIST_EXPORT Result<Frame> DecodeFrame(std::span<const uint8_t, kFrameBytes> bytes,
                                        uint64_t window_bytes);

// "push", "push_pull", …
MYDIST_EXPORT std::string_view FrameKindName(FrameKind kind);

}  // namespace mydist::ps
