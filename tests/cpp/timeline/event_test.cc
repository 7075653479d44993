#include "timeline/event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "conformance/status_checks.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;

EventBlock SampleBlock() {
  EventBlock block;
  block.sent_ns = 123456789012345;
  block.dropped_count = 7;
  block.events = {
      {100, 0, EventPhase::kBegin, "layer1.weight", "NEGOTIATE", "shape [2, 3]"},
      {200, 0, EventPhase::kEnd, "layer1.weight", "NEGOTIATE", ""},
      {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
       EventPhase::kComplete, std::string("\0\xFF\"", 3), "", "\n"},
      {-5, 0, EventPhase::kInstant, "cycle", "CYCLE", ""},
  };
  return block;
}

TEST(EventTest, BlockSurvivesEncoding) {
  for (const EventBlock& block : {SampleBlock(), EventBlock{}}) {
    const auto decoded = DecodeEvents(EncodeEvents(block));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(*decoded, block);
  }
}

TEST(EventTest, RepeatedTextsAreSentOnce) {
  const std::string lane(500, 'x');
  EventBlock block;
  for (int i = 0; i < 100; ++i) block.events.push_back({i, 0, EventPhase::kBegin, lane, "N", ""});
  EXPECT_LT(EncodeEvents(block).size(), 500U + 100 * 40);
}

TEST(EventTest, LongTextsAreCut) {
  EventBlock block;
  block.events.push_back({1, 0, EventPhase::kInstant, std::string(kMaxEventTextBytes + 1, 'a'),
                          std::string(100000, 'b'), "c"});
  const auto decoded = DecodeEvents(EncodeEvents(block));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->events[0].lane, std::string(kMaxEventTextBytes, 'a'));
  EXPECT_EQ(decoded->events[0].name, std::string(kMaxEventTextBytes, 'b'));
  EXPECT_EQ(decoded->events[0].args, "c");
}

TEST(EventTest, EventsBeyondTheLimitsAreCountedAsDropped) {
  EventBlock block;
  block.dropped_count = 2;
  block.events.assign(kMaxBlockEventCount + 5, {1, 0, EventPhase::kInstant, "a", "b", ""});
  const auto many = DecodeEvents(EncodeEvents(block));
  ASSERT_TRUE(many.ok());
  EXPECT_EQ(many->events.size(), kMaxBlockEventCount);
  EXPECT_EQ(many->dropped_count, 7);

  block.events.clear();
  for (int i = 0; i < 20000; ++i) {
    std::string lane = std::to_string(i);
    lane.resize(kMaxEventTextBytes, '.');
    block.events.push_back({i, 0, EventPhase::kInstant, lane, "b", ""});
  }
  const std::vector<uint8_t> bytes = EncodeEvents(block);
  EXPECT_LE(bytes.size(), kMaxEventBlockBytes);
  const auto large = DecodeEvents(bytes);
  ASSERT_TRUE(large.ok());
  EXPECT_GT(large->events.size(), 15000U);
  EXPECT_EQ(large->dropped_count, 2 + 20000 - static_cast<int64_t>(large->events.size()));
}

TEST(EventTest, EveryTruncationAndMoreIsAnError) {
  std::vector<uint8_t> bytes = EncodeEvents(SampleBlock());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = DecodeEvents({bytes.begin(), bytes.begin() + static_cast<long>(size)});
    ASSERT_FALSE(decoded.ok()) << "cut to " << size;
    ExpectError(decoded.status(), StatusCode::kInternal, {"malformed block of timeline events"});
  }
  bytes.push_back(0);
  EXPECT_FALSE(DecodeEvents(bytes).ok());
}

// Offsets of the fixed part: magic 0, sent 4, dropped 12, text count 20, first length 24.
TEST(EventTest, WrongNumbersAreNamed) {
  const auto message_with = [](size_t offset, uint8_t value) {
    std::vector<uint8_t> bytes = EncodeEvents(SampleBlock());
    bytes[offset] = value;
    const auto decoded = DecodeEvents(bytes);
    return decoded.ok() ? std::string("accepted") : decoded.status().message();
  };
  EXPECT_THAT(message_with(0, 'X'), HasSubstr("its first bytes are wrong"));
  EXPECT_THAT(message_with(19, 0x80), HasSubstr("a negative drop count"));
  EXPECT_THAT(message_with(23, 0xFF), HasSubstr("elements, but only"));
  EXPECT_THAT(message_with(25, 0xFF), HasSubstr("elements, but only"));
  const size_t last_event = EncodeEvents(SampleBlock()).size() - 29;
  EXPECT_THAT(message_with(last_event + 16, 4), HasSubstr("event phase 4, expected 0 to 3"));
  EXPECT_THAT(message_with(last_event + 17, 99), HasSubstr("text number 99 of "));
}

TEST(EventTest, RandomBytesAreNeverACrash) {
  std::mt19937 random(1);
  const std::vector<uint8_t> good = EncodeEvents(SampleBlock());
  int accepted_count = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> bytes = good;
    const int changes = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < changes; ++i)
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    const auto decoded = DecodeEvents(bytes);
    if (decoded.ok()) {
      ++accepted_count;
      EXPECT_EQ(EncodeEvents(*decoded).size() <= kMaxEventBlockBytes, true);
    } else {
      EXPECT_EQ(decoded.status().code(), StatusCode::kInternal);
    }
  }
  // Changed times and texts are still a block; changed counts and numbers are not.
  EXPECT_GT(accepted_count, 0);
  EXPECT_LT(accepted_count, 20000);
}

}  // namespace
}  // namespace mydist
