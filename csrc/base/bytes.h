// ByteWriter and ByteReader: bounds-checked little-endian writing and reading of messages. Pure.
// Invariant: no count or length read from a peer leads to an allocation larger than the message it
// came in.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/export.h"
#include "base/status.h"

namespace mydist {

class MYDIST_EXPORT ByteWriter {
 public:
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

  void Reserve(size_t byte_count) { bytes_.reserve(byte_count); }
  size_t size() const { return bytes_.size(); }
  std::vector<uint8_t> Take() && { return std::move(bytes_); }

 private:
  void Append(uint64_t value, size_t byte_count) {
    const size_t begin = bytes_.size();
    bytes_.resize(begin + byte_count);
    for (size_t i = 0; i < byte_count; ++i) {
      bytes_[begin + i] = static_cast<uint8_t>(value >> (8 * i));
    }
  }
  std::vector<uint8_t> bytes_;
};

// Reads what ByteWriter wrote. After the first violation every read returns 0 or nothing and
// Finish() says what was wrong, so that callers check once at the end.
class MYDIST_EXPORT ByteReader {
 public:
  // `what` the bytes are, such as "control message", for errors; never freed.
  ByteReader(std::span<const uint8_t> bytes, const char* what) : rest_(bytes), what_(what) {}

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

  void Fail(const std::string& why);
  bool ok() const { return status_.ok(); }
  bool AtEnd() const { return rest_.empty(); }
  // kInternal unless everything was valid and nothing is left over.
  Status Finish();

 private:
  uint64_t Take(size_t byte_count);
  std::span<const uint8_t> rest_;
  const char* what_;
  Status status_;
};

}  // namespace mydist
