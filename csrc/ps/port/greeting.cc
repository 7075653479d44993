#include "ps/port/greeting.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace mydist::ps {
namespace {

constexpr size_t kZeroBytes = 3;  // After the version.
constexpr size_t kSpareBytes = kHelloBytes - kVersionBytes - kNonceBytes;

void WriteVersion(ByteWriter& writer) {
  writer.U32(kGreetingMagic);
  writer.U8(kGreetingVersion);
  for (size_t i = 0; i < kZeroBytes; ++i) writer.U8(0);
}

template <size_t kSize>
std::array<uint8_t, kSize> Fixed(ByteWriter writer) {
  const std::vector<uint8_t> bytes = std::move(writer).Take();
  MYDIST_CHECK(bytes.size() == kSize);
  std::array<uint8_t, kSize> fixed;
  std::copy(bytes.begin(), bytes.end(), fixed.begin());
  return fixed;
}

template <size_t kSize>
std::array<uint8_t, kSize> Copy(std::span<const uint8_t> bytes) {
  std::array<uint8_t, kSize> copy;
  std::copy_n(bytes.begin(), kSize, copy.begin());
  return copy;
}

bool AreZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

}  // namespace

std::array<uint8_t, kVersionBytes> EncodeVersion() {
  ByteWriter writer;
  WriteVersion(writer);
  return Fixed<kVersionBytes>(std::move(writer));
}

Status CheckVersion(std::span<const uint8_t, kVersionBytes> bytes) {
  ByteReader reader(bytes, "start of a connection");
  if (reader.U32() != kGreetingMagic) {
    return Status::Internal("the first bytes are not those of mydist's parameter server");
  }
  const uint8_t version = reader.U8();
  if (version != kGreetingVersion) {
    return Status::VersionMismatch("the other side speaks version " + std::to_string(version) +
                                   " of the handshake, expected " +
                                   std::to_string(kGreetingVersion) +
                                   ". Install the same mydist on all hosts.");
  }
  if (!AreZero(reader.Raw(kZeroBytes))) reader.Fail("a byte behind the version is not 0");
  return reader.Finish();
}

std::array<uint8_t, kHelloBytes> EncodeHello(const Nonce& nonce) {
  ByteWriter writer;
  WriteVersion(writer);
  for (size_t i = 0; i < kSpareBytes; ++i) writer.U8(0);
  writer.Raw(nonce);
  return Fixed<kHelloBytes>(std::move(writer));
}

Result<Nonce> DecodeHello(std::span<const uint8_t, kHelloBytes> bytes) {
  MYDIST_RETURN_IF_ERROR(CheckVersion(bytes.first<kVersionBytes>()));
  if (!AreZero(bytes.subspan<kVersionBytes, kSpareBytes>())) {
    return Status::Internal("malformed hello: a spare byte is not 0");
  }
  return Copy<kNonceBytes>(bytes.last<kNonceBytes>());
}

std::array<uint8_t, kReplyBytes> EncodeReply(const Reply& reply) {
  ByteWriter writer;
  WriteVersion(writer);
  writer.Raw(reply.nonce);
  writer.Raw(reply.proof);
  return Fixed<kReplyBytes>(std::move(writer));
}

Result<Reply> DecodeReply(std::span<const uint8_t, kReplyBytes> bytes) {
  MYDIST_RETURN_IF_ERROR(CheckVersion(bytes.first<kVersionBytes>()));
  return Reply{Copy<kNonceBytes>(bytes.subspan<kVersionBytes, kNonceBytes>()),
               Copy<kProofBytes>(bytes.last<kProofBytes>())};
}

std::vector<uint8_t> EncodeGreeting(const Greeting& greeting) {
  ByteWriter body;
  body.I32(greeting.self.number);
  body.I64(greeting.self.pid);
  body.U64(greeting.self.session);
  body.U64(greeting.window_bytes);
  body.String(greeting.self.host, kMaxHostBytes);
  body.String(greeting.refusal, kMaxHostBytes);
  const std::vector<uint8_t> bytes = std::move(body).Take();
  ByteWriter writer;
  writer.Count(bytes.size());
  writer.Raw(bytes);
  return std::move(writer).Take();
}

Result<size_t> DecodeGreetingLength(std::span<const uint8_t, 4> bytes) {
  ByteReader reader(bytes, "introduction");
  const uint32_t length = reader.U32();
  if (length < 1 || length > kMaxGreetingBytes) {
    return Status::Internal("malformed introduction: it announces " + std::to_string(length) +
                            " bytes, expected 1 to " + std::to_string(kMaxGreetingBytes));
  }
  return size_t{length};
}

Result<Greeting> DecodeGreeting(std::span<const uint8_t> bytes) {
  ByteReader reader(bytes, "introduction");
  Greeting greeting;
  greeting.self.number = reader.I32();
  greeting.self.pid = reader.I64();
  greeting.self.session = reader.U64();
  greeting.window_bytes = reader.U64();
  greeting.self.host = reader.String(kMaxHostBytes);
  greeting.refusal = reader.String(kMaxHostBytes);
  if (greeting.self.number < 0) reader.Fail("its number is below 0");
  if (greeting.window_bytes > kMaxWindowBytes) {
    reader.Fail("its window has " + std::to_string(greeting.window_bytes) + " bytes, at most " +
                std::to_string(kMaxWindowBytes) + " are allowed");
  }
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return greeting;
}

}  // namespace mydist::ps
