// Message codec: reports and segments to bytes and back. Pure; the format is docs/wire_protocol.md.
// Decoding checks every count, length and enumerator; what needs the job's state (ranks, slots) is
// checked by the Negotiator. A list too long for one message is spread over several.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "controller/farewell.h"
#include "controller/messages/report.h"
#include "controller/messages/stream.h"
#include "transport/control_plane.h"
#include "transport/vote_board.h"

namespace mydist {

// Encoders start another message beyond this size, well below kMaxControlMessageBytes.
inline constexpr size_t kMessageTargetBytes = size_t{16} << 20;

// Entries a message may have; a decoded entry is larger than its bytes.
inline constexpr size_t kMaxEntriesPerMessage = size_t{1} << 17;

// At least one message; each is a valid report of the same position.
std::vector<Bytes> EncodeReport(const Report& report, size_t target_bytes = kMessageTargetBytes);
// At least one message; segments that follow each other.
std::vector<Bytes> EncodeSegment(const StreamSegment& segment,
                                 size_t target_bytes = kMessageTargetBytes);

Bytes EncodeVote(const VoteWord& word);
Bytes EncodeFarewell(const Farewell& farewell);  // Cut to kMaxFarewellBytes.

// kInternal or kVersionMismatch, saying what is wrong.
Result<Report> DecodeReport(std::span<const uint8_t> message);
Result<StreamSegment> DecodeSegment(std::span<const uint8_t> message);
Result<VoteWord> DecodeVote(std::span<const uint8_t> message);
Result<Farewell> DecodeFarewell(std::span<const uint8_t> message);

}  // namespace mydist
