#include "base/bytes.h"

#include <bit>

namespace mydist {

void ByteWriter::F64(double value) { U64(std::bit_cast<uint64_t>(value)); }

void ByteWriter::Count(size_t count) {
  MYDIST_CHECK(count <= UINT32_MAX);
  U32(static_cast<uint32_t>(count));
}

void ByteWriter::String(std::string_view text, size_t limit) {
  text = text.substr(0, limit);
  Count(text.size());
  bytes_.insert(bytes_.end(), text.begin(), text.end());
}

void ByteWriter::Raw(std::span<const uint8_t> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

double ByteReader::F64() { return std::bit_cast<double>(U64()); }

bool ByteReader::Bool() {
  const uint8_t value = U8();
  if (value > 1) Fail("a flag is " + std::to_string(value) + ", expected 0 or 1");
  return value == 1;
}

std::string ByteReader::String(size_t limit) {
  const size_t byte_count = Count(1);
  if (byte_count > limit) {
    Fail("a string has " + std::to_string(byte_count) + " bytes, at most " + std::to_string(limit) +
         " are allowed");
    return {};
  }
  const auto bytes = Raw(byte_count);
  return {bytes.begin(), bytes.end()};
}

std::span<const uint8_t> ByteReader::Raw(size_t byte_count) {
  if (ok() && byte_count > rest_.size()) {
    Fail("it ends " + std::to_string(byte_count - rest_.size()) + " bytes too early");
  }
  if (!ok()) return {};
  const auto bytes = rest_.first(byte_count);
  rest_ = rest_.subspan(byte_count);
  return bytes;
}

size_t ByteReader::Count(size_t element_bytes) {
  const uint32_t count = U32();
  if (ok() && count > rest_.size() / element_bytes) {
    Fail("it announces " + std::to_string(count) + " elements, but only " +
         std::to_string(rest_.size()) + " bytes follow");
  }
  return ok() ? count : 0;
}

void ByteReader::Fail(const std::string& why) {
  if (ok()) status_ = Status::Internal(std::string("malformed ") + what_ + ": " + why);
}

Status ByteReader::Finish() {
  if (!rest_.empty()) Fail(std::to_string(rest_.size()) + " bytes are left over");
  return status_;
}

uint64_t ByteReader::Take(size_t byte_count) {
  uint64_t value = 0;
  const auto bytes = Raw(byte_count);
  for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t{bytes[i]} << (8 * i);
  return value;
}

}  // namespace mydist
