// The bytes of the handshake, and what is no handshake.
#include "ps/port/greeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/bytes.h"
#include "ps/port/proof.h"

namespace mydist::ps {
namespace {

Nonce NonceOf(uint8_t byte) {
  Nonce nonce;
  nonce.fill(byte);
  return nonce;
}

TEST(Greeting, SurvivesItsBytes) {
  const Greeting greeting{
      .self = {.number = 5, .pid = 4000000000, .host = "h", .session = 1ull << 63},
      .window_bytes = kMaxWindowBytes,
      .refusal = "full"};
  const std::vector<uint8_t> bytes = EncodeGreeting(greeting);
  const auto length = DecodeGreetingLength(std::span(bytes).first<4>());
  ASSERT_TRUE(length.ok());
  ASSERT_EQ(*length, bytes.size() - 4);
  const auto again = DecodeGreeting(std::span(bytes).subspan(4));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->self.number, 5);
  EXPECT_EQ(again->self.pid, 4000000000);
  EXPECT_EQ(again->self.session, 1ull << 63);
  EXPECT_EQ(again->self.host, "h");
  EXPECT_EQ(again->window_bytes, kMaxWindowBytes);
  EXPECT_EQ(again->refusal, "full");
}

TEST(Greeting, OfAHostWithALongNameIsCutToTheLimit) {
  const std::string host(2000, 'h');
  const std::vector<uint8_t> bytes = EncodeGreeting({.self = {.host = host}, .refusal = host});
  ASSERT_LE(bytes.size(), 4 + kMaxGreetingBytes);
  const auto again = DecodeGreeting(std::span(bytes).subspan(4));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->self.host, std::string(kMaxHostBytes, 'h'));
}

TEST(Greeting, WithNumbersThatCannotBeIsRefused) {
  for (const auto& greeting :
       {Greeting{.self = {.number = -1}}, Greeting{.window_bytes = kMaxWindowBytes + 1}}) {
    const std::vector<uint8_t> bytes = EncodeGreeting(greeting);
    EXPECT_EQ(DecodeGreeting(std::span(bytes).subspan(4)).status().code(), StatusCode::kInternal);
  }
  const std::vector<uint8_t> bytes = EncodeGreeting({});
  EXPECT_FALSE(DecodeGreeting(std::span(bytes).subspan(5)).ok());
}

TEST(Greeting, OfAnotherLengthIsRefused) {
  for (const uint32_t length : {uint32_t{0}, uint32_t{kMaxGreetingBytes + 1}, UINT32_MAX}) {
    ByteWriter writer;
    writer.U32(length);
    const std::vector<uint8_t> bytes = std::move(writer).Take();
    EXPECT_EQ(DecodeGreetingLength(std::span(bytes).first<4>()).status().code(),
              StatusCode::kInternal);
  }
}

TEST(Hello, SurvivesItsBytes) {
  EXPECT_EQ(DecodeHello(EncodeHello(NonceOf(9))).value(), NonceOf(9));
}

TEST(Hello, WithAnyOtherByteInFrontIsRefused) {
  for (size_t i = 0; i < kHelloBytes - kNonceBytes; ++i) {
    auto bytes = EncodeHello(NonceOf(9));
    bytes[i] ^= 0x40;
    const StatusCode code = DecodeHello(bytes).status().code();
    EXPECT_EQ(code, i == 4 ? StatusCode::kVersionMismatch : StatusCode::kInternal) << i;
  }
}

TEST(Reply, SurvivesItsBytes) {
  const Reply reply{NonceOf(1), NonceOf(2)};
  const auto again = DecodeReply(EncodeReply(reply));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->nonce, reply.nonce);
  EXPECT_EQ(again->proof, reply.proof);
}

TEST(Proof, DependsOnEverythingThatIsProved) {
  JobKey key{};
  const Proof proof = Prove(key, Side::kWorker, NonceOf(1), NonceOf(2)).value();
  EXPECT_TRUE(AreEqual(proof, Prove(key, Side::kWorker, NonceOf(1), NonceOf(2)).value()));
  EXPECT_FALSE(AreEqual(proof, Prove(key, Side::kServer, NonceOf(1), NonceOf(2)).value()));
  EXPECT_FALSE(AreEqual(proof, Prove(key, Side::kWorker, NonceOf(3), NonceOf(2)).value()));
  EXPECT_FALSE(AreEqual(proof, Prove(key, Side::kWorker, NonceOf(1), NonceOf(3)).value()));
  key[31] = 1;
  EXPECT_FALSE(AreEqual(proof, Prove(key, Side::kWorker, NonceOf(1), NonceOf(2)).value()));
}

// As Python's hmac.new(bytes(32), b"ps server 1" + b"\1" * 32 + b"\2" * 32, "sha256") has it.
TEST(Proof, IsHmacSha256) {
  const Proof proof = Prove({}, Side::kServer, NonceOf(1), NonceOf(2)).value();
  const std::vector<uint8_t> start(proof.begin(), proof.begin() + 8);
  EXPECT_THAT(start, ::testing::ElementsAre(0xe1, 0x95, 0x72, 0x3e, 0x16, 0xac, 0x5d, 0x5e));
}

TEST(Nonce, IsFresh) { EXPECT_NE(FreshNonce().value(), FreshNonce().value()); }

}  // namespace
}  // namespace mydist::ps
