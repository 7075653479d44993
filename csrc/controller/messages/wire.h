// Wire: bounds-checked little-endian writing and reading of control messages. Pure.
// Invariant: no count or length read from a peer leads to an allocation larger than the message it
// came in. Every message starts with kWireVersion and a MessageKind. See docs/wire_protocol.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "transport/control_plane.h"

namespace mydist {

inline constexpr uint8_t kWireVersion = 1;

enum class MessageKind : uint8_t {
  kReport = 1,    // Child to parent.
  kSegment = 2,   // Parent to child.
  kTimeline = 3,  // Any rank to rank 0; opaque.
  kVote = 4,      // Between leaders of hosts: what a host says of a frozen bucket.
  kFarewell = 5,  // Any rank to all others: it has stopped with an error.
};

inline constexpr size_t kMaxNameBytes = 4096;
inline constexpr size_t kMaxTextBytes = size_t{1} << 20;
inline constexpr size_t kMaxDims = 64;

class Writer {
 public:
  explicit Writer(MessageKind kind);

  void U8(uint8_t value) { bytes_.push_back(value); }
  void U32(uint32_t value) { Append(value, 4); }
  void U64(uint64_t value) { Append(value, 8); }
  void I32(int32_t value) { U32(static_cast<uint32_t>(value)); }
  void I64(int64_t value) { U64(static_cast<uint64_t>(value)); }
  void F64(double value);
  void Count(size_t count);  // Below 2^32.
  // Longer strings are cut at `limit` bytes.
  void String(std::string_view text, size_t limit);
  void Raw(std::span<const uint8_t> bytes);

  size_t size() const { return bytes_.size(); }
  Bytes Take() && { return std::move(bytes_); }

 private:
  void Append(uint64_t value, int byte_count);
  Bytes bytes_;
};

// Reads what Writer wrote. After the first violation every read returns 0 or nothing and status()
// says what was wrong, so that callers check once at the end.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : rest_(bytes) {}

  uint8_t U8() { return static_cast<uint8_t>(Take(1)); }
  uint32_t U32() { return static_cast<uint32_t>(Take(4)); }
  uint64_t U64() { return Take(8); }
  int32_t I32() { return static_cast<int32_t>(U32()); }
  int64_t I64() { return static_cast<int64_t>(U64()); }
  double F64();
  bool Bool();  // 0 or 1, nothing else.
  std::string String(size_t limit);
  std::span<const uint8_t> Raw(size_t byte_count);
  // A number of elements of at least `element_bytes` (>= 1) each, which the rest must hold.
  size_t Count(size_t element_bytes);

  void Fail(std::string what);
  bool ok() const { return status_.ok(); }
  bool AtEnd() const { return rest_.empty(); }
  const Status& status() const { return status_; }
  // kInternal unless everything was valid and nothing is left over.
  Status Finish();

 private:
  uint64_t Take(size_t byte_count);
  std::span<const uint8_t> rest_;
  Status status_;
};

// The kind of a message; kVersionMismatch or kInternal when it cannot be read by this build.
Result<MessageKind> PeekKind(std::span<const uint8_t> message);
inline constexpr size_t kMessageHeaderBytes = 2;

}  // namespace mydist
