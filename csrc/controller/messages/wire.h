// Wire: writing and reading of control messages. Pure. Every message starts with kWireVersion and a
// MessageKind. See docs/wire_protocol.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "controller/membership.h"
#include "controller/messages/report.h"
#include "controller/messages/request.h"
#include "controller/messages/response.h"
#include "transport/control_plane.h"
#include "transport/vote_board.h"

namespace mydist {

inline constexpr uint8_t kWireVersion = 2;

enum class MessageKind : uint8_t {
  kReport = 1,    // Child to parent.
  kSegment = 2,   // Parent to child.
  kTimeline = 3,  // Any rank to rank 0; opaque.
  kVote = 4,      // Between leaders of hosts: what a host says of a frozen bucket.
  kFarewell = 5,  // Any rank to all others: it has stopped with an error.
  kQuestion = 6,  // A rank that waits to one it waits for, in the end: whom do you wait for?
  kAnswer = 7,    // Back.
};

inline constexpr size_t kMaxNameBytes = 4096;
inline constexpr size_t kMaxTextBytes = size_t{1} << 20;
inline constexpr size_t kMaxDims = 64;
inline constexpr size_t kMaxProgressBytes = 256;

class Writer : public ByteWriter {
 public:
  explicit Writer(MessageKind kind) {
    U8(kWireVersion);
    U8(static_cast<uint8_t>(kind));
  }
};

using Reader = ByteReader;

// The kind of a message; kVersionMismatch or kInternal when it cannot be read by this build.
Result<MessageKind> PeekKind(std::span<const uint8_t> message);
inline constexpr size_t kMessageHeaderBytes = 2;

// Request codec: the parts that reports and segments have in common, to bytes and back. Pure.

void WriteRequest(Writer& writer, const Request& request);
// The request has passed CheckRequest, unless the reader has failed.
Request ReadRequest(Reader& reader);

void WriteRanks(Writer& writer, const std::vector<int32_t>& ranks);
std::vector<int32_t> ReadRanks(Reader& reader);

void WriteFirstDims(Writer& writer, const std::vector<int64_t>& first_dims);
std::vector<int64_t> ReadFirstDims(Reader& reader);  // None negative.

// A reader behind the header of a message of this kind; kVersionMismatch or kInternal.
Result<Reader> OpenMessage(std::span<const uint8_t> message, MessageKind expected);

// Whether a message can carry the request: lengths, dimensions, element count. kInvalidArgument.
Status CheckRequest(const Request& request);

// Message codec: reports and segments to bytes and back. Pure; the format is docs/wire_protocol.md.
// Decoding checks every count, length and enumerator; what needs the job's state (ranks, slots) is
// checked by the Negotiator. A list too long for one message is spread over several.

// Encoders start another message beyond this size, well below kMaxControlMessageBytes.
inline constexpr size_t kMessageTargetBytes = size_t{16} << 20;

// Entries a message may have; a decoded entry is larger than its bytes.
inline constexpr size_t kMaxEntriesPerMessage = size_t{1} << 17;

// At least one message; each is a valid report of the same position. Their numbers follow each
// other.
std::vector<Bytes> EncodeReport(const Report& report, size_t target_bytes = kMessageTargetBytes);
// At least one message; segments that follow each other.
std::vector<Bytes> EncodeSegment(const StreamSegment& segment,
                                 size_t target_bytes = kMessageTargetBytes);

// In place of a process set: which ranks one that has departed waits for before it can leave.
inline constexpr ProcessSetId kLeaving = -1;
// In place of a process set: which ranks a call waits for that names no tensor, as join().
inline constexpr ProcessSetId kJoining = -2;

// Whom do you wait for? About a tensor, where the asker waits for one.
struct Question {
  uint32_t number = 0;  // Of the asker's questions; the answer has it, too.
  ProcessSetId process_set = kGlobalProcessSet;
  std::string tensor;

  bool operator==(const Question&) const = default;
};

// What a rank has done last.
struct Progress {
  std::string last;  // The last collective it has completed, as CallText; empty: none yet.
  double ago = 0;    // Seconds since then.

  bool operator==(const Progress&) const = default;
};

struct Answer {
  uint32_t number = 0;
  std::vector<int32_t> awaited;  // Nobody, or the rank itself: it is waited for.
  Progress progress{};

  bool operator==(const Answer&) const = default;
};

Bytes EncodeVote(const VoteWord& word);
Bytes EncodeFarewell(const Farewell& farewell);  // Cut to kMaxFarewellBytes.
Bytes EncodeQuestion(const Question& question);
Bytes EncodeAnswer(const Answer& answer);

// kInternal or kVersionMismatch, saying what is wrong.
Result<Report> DecodeReport(std::span<const uint8_t> message);
Result<StreamSegment> DecodeSegment(std::span<const uint8_t> message);
Result<VoteWord> DecodeVote(std::span<const uint8_t> message);
Result<Farewell> DecodeFarewell(std::span<const uint8_t> message);
Result<Question> DecodeQuestion(std::span<const uint8_t> message);
Result<Answer> DecodeAnswer(std::span<const uint8_t> message);

}  // namespace mydist
