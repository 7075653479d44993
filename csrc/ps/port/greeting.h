// What both sides of a new connection say before the first frame, as bytes. Pure; little-endian.
// Nothing here takes memory for a number that a stranger has sent.
//   worker → server  64 bytes: magic u32 "MYDP", version u8, 27 zero bytes, nonce (32)
//   server → worker  72 bytes: magic u32, version u8, 3 zero bytes, nonce (32), proof (32); to
//                    another version the first 8 alone
//   worker → server  32 bytes: proof
//   worker → server  length u32 (at most 1024) and that many bytes: number i32, pid i64,
//                    session u64, bytes of the window u64, host and refusal as strings
//   server → worker  the same of its own; the window is the one that it has mapped, or 0
// A proof is HMAC-SHA256(key, label + nonce of the worker + nonce of the server). The labels
// differ, so that no proof can be reflected; both nonces are fresh, so that none can be replayed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "ps/port/link.h"

namespace mydist::ps {

inline constexpr uint32_t kGreetingMagic = 0x5044594d;  // "MYDP".
inline constexpr uint8_t kGreetingVersion = 1;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kHelloBytes = 64;
inline constexpr size_t kVersionBytes = 8;  // Magic and version, before all else.
inline constexpr size_t kReplyBytes = kVersionBytes + kNonceBytes + kProofBytes;
inline constexpr size_t kMaxGreetingBytes = 1024;
inline constexpr size_t kMaxHostBytes = 255;
inline constexpr uint64_t kMaxWindowBytes = uint64_t{1} << 30;

using Nonce = std::array<uint8_t, kNonceBytes>;
using Proof = std::array<uint8_t, kProofBytes>;

// The first bytes of either side.
std::array<uint8_t, kVersionBytes> EncodeVersion();
// kInternal when they are none of mydist, kVersionMismatch when
// they are of another version.
Status CheckVersion(std::span<const uint8_t, kVersionBytes> bytes);

std::array<uint8_t, kHelloBytes> EncodeHello(const Nonce& nonce);
// As CheckVersion; kInternal as well when a byte that must be zero is none.
Result<Nonce> DecodeHello(std::span<const uint8_t, kHelloBytes> bytes);

struct Reply {
  Nonce nonce{};
  Proof proof{};
};
std::array<uint8_t, kReplyBytes> EncodeReply(const Reply& reply);
Result<Reply> DecodeReply(std::span<const uint8_t, kReplyBytes> bytes);

// What either side says once both have proved the key.
struct Greeting {
  Introduction self;
  uint64_t window_bytes = 0;  // 0: no window.
  std::string refusal;        // Of a server that takes no more workers: why; empty otherwise.
};
// With the length in front.
std::vector<uint8_t> EncodeGreeting(const Greeting& greeting);
// The bytes that follow; kInternal when there are none or too many.
Result<size_t> DecodeGreetingLength(std::span<const uint8_t, 4> bytes);
Result<Greeting> DecodeGreeting(std::span<const uint8_t> bytes);

}  // namespace mydist::ps
