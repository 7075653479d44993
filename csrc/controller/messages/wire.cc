#include "controller/messages/wire.h"

#include <bit>
#include <utility>

#include "base/check.h"

namespace mydist {

Writer::Writer(MessageKind kind) {
  U8(kWireVersion);
  U8(static_cast<uint8_t>(kind));
}

void Writer::F64(double value) { U64(std::bit_cast<uint64_t>(value)); }

void Writer::Count(size_t count) {
  MYDIST_CHECK(count <= UINT32_MAX);
  U32(static_cast<uint32_t>(count));
}

void Writer::String(std::string_view text, size_t limit) {
  text = text.substr(0, limit);
  Count(text.size());
  bytes_.insert(bytes_.end(), text.begin(), text.end());
}

void Writer::Raw(std::span<const uint8_t> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void Writer::Append(uint64_t value, int byte_count) {
  for (int i = 0; i < byte_count; ++i) bytes_.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

double Reader::F64() { return std::bit_cast<double>(U64()); }

bool Reader::Bool() {
  const uint8_t value = U8();
  if (value > 1) Fail("a flag is " + std::to_string(value) + ", expected 0 or 1");
  return value == 1;
}

std::string Reader::String(size_t limit) {
  const size_t byte_count = Count(1);
  if (byte_count > limit) {
    Fail("a string has " + std::to_string(byte_count) + " bytes, at most " + std::to_string(limit) +
         " are allowed");
    return {};
  }
  const auto bytes = Raw(byte_count);
  return {bytes.begin(), bytes.end()};
}

std::span<const uint8_t> Reader::Raw(size_t byte_count) {
  if (ok() && byte_count > rest_.size()) {
    Fail("it ends " + std::to_string(byte_count - rest_.size()) + " bytes too early");
  }
  if (!ok()) return {};
  const auto bytes = rest_.first(byte_count);
  rest_ = rest_.subspan(byte_count);
  return bytes;
}

size_t Reader::Count(size_t element_bytes) {
  const uint32_t count = U32();
  if (ok() && count > rest_.size() / element_bytes) {
    Fail("it announces " + std::to_string(count) + " elements, but only " +
         std::to_string(rest_.size()) + " bytes follow");
  }
  return ok() ? count : 0;
}

void Reader::Fail(std::string what) {
  if (ok()) status_ = Status::Internal("malformed control message: " + std::move(what));
}

Status Reader::Finish() {
  if (!rest_.empty()) Fail(std::to_string(rest_.size()) + " bytes are left over");
  return status_;
}

uint64_t Reader::Take(size_t byte_count) {
  uint64_t value = 0;
  const auto bytes = Raw(byte_count);
  for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t{bytes[i]} << (8 * i);
  return value;
}

Result<MessageKind> PeekKind(std::span<const uint8_t> message) {
  if (message.size() < kMessageHeaderBytes) {
    return Status::Internal("malformed control message: it has " + std::to_string(message.size()) +
                            " bytes, expected at least " + std::to_string(kMessageHeaderBytes));
  }
  if (message[0] != kWireVersion) {
    return Status::VersionMismatch("it speaks version " + std::to_string(message[0]) +
                                   " of the control protocol, this rank speaks version " +
                                   std::to_string(kWireVersion) +
                                   ". Install the same mydist version on every host.");
  }
  if (message[1] < 1 || message[1] > 5) {
    return Status::Internal("malformed control message: kind " + std::to_string(message[1]) +
                            " is unknown");
  }
  return static_cast<MessageKind>(message[1]);
}

}  // namespace mydist
