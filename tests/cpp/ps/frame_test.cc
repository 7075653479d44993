// Frames as bytes, and what is no frame.
#include "ps/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace mydist::ps {
namespace {

using ::testing::HasSubstr;

// A value in each field that no other field has.
Frame FullFrame() {
  return {.kind = FrameKind::kAnswer,
          .is_in_window = true,
          .code = static_cast<uint8_t>(StatusCode::kMismatch),
          .table = 0xfffffff1,
          .piece = 0xfffffff2,
          .worker = 0xfffffff3,
          .epoch = 0xfffffff4,
          .sequence = std::numeric_limits<uint64_t>::max(),
          .version = std::numeric_limits<uint64_t>::max() - 1,
          .clock = std::numeric_limits<uint64_t>::max() - 2,
          .payload_bytes = 1000,
          .place = 3096};
}

TEST(Frame, SurvivesItsBytes) {
  const auto again = DecodeFrame(EncodeFrame(FullFrame()), 4096);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(*again, FullFrame());
}

TEST(Frame, OfEachKindSurvivesAndHasAName) {
  int known = 0;
  for (int kind = 0; kind < 256; ++kind) {
    const Frame frame{.kind = static_cast<FrameKind>(kind)};
    const auto again = DecodeFrame(EncodeFrame(frame), 0);
    EXPECT_EQ(again.ok(), FrameKindName(frame.kind) != "unknown") << kind;
    if (!again.ok()) continue;
    EXPECT_EQ(*again, frame);
    ++known;
  }
  EXPECT_EQ(known, 14);
}

TEST(Frame, HasTheLayoutOfItsDescription) {
  const FrameBytes bytes = EncodeFrame({.kind = FrameKind::kPush,
                                        .table = 1,
                                        .piece = 2,
                                        .worker = 3,
                                        .epoch = 4,
                                        .sequence = 5,
                                        .version = 6,
                                        .clock = 7,
                                        .payload_bytes = 8,
                                        .place = 9});
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 4), "MYPS");
  EXPECT_EQ(bytes[4], kFrameVersion);
  EXPECT_EQ(bytes[5], 4);
  const std::vector<size_t> places{8, 12, 16, 20, 24, 32, 40, 48, 56};
  for (size_t i = 0; i < places.size(); ++i) EXPECT_EQ(bytes[places[i]], i + 1) << places[i];
}

struct Wrong {
  size_t place;
  uint8_t byte;
  const char* message;
};

TEST(Frame, WithAWrongByteIsRefused) {
  for (const Wrong& wrong :
       {Wrong{0, 'N', "it does not begin with MYPS"}, Wrong{4, 2, "got version 2, expected 1"},
        Wrong{5, 77, "kind 77 is unknown"}, Wrong{6, 2, "flags 2 are unknown"},
        Wrong{7, kStatusCodeCount, "code 9 is unknown"}}) {
    FrameBytes bytes = EncodeFrame({});
    bytes[wrong.place] = wrong.byte;
    const auto frame = DecodeFrame(bytes, 4096);
    EXPECT_EQ(frame.status().code(), StatusCode::kInternal);
    EXPECT_THAT(frame.status().message(), HasSubstr(wrong.message));
  }
}

TEST(Frame, HasAPayloadUpToTheLimit) {
  Frame frame{.kind = FrameKind::kPush, .payload_bytes = kMaxPayloadBytes};
  EXPECT_TRUE(DecodeFrame(EncodeFrame(frame), 0).ok());
  ++frame.payload_bytes;
  EXPECT_THAT(DecodeFrame(EncodeFrame(frame), 0).status().message(),
              HasSubstr("its payload has 67108865 bytes, at most 67108864 are allowed"));
}

TEST(Frame, NamesNoBytesBeyondTheWindow) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  struct Case {
    uint64_t place;
    uint64_t bytes;
    uint64_t window;
    bool is_allowed;
  };
  for (const Case& each :
       {Case{0, 4096, 4096, true}, Case{4096, 0, 4096, true}, Case{1, 4096, 4096, false},
        Case{4097, 0, 4096, false}, Case{kMost, 1, 4096, false}, Case{kMost - 10, 11, 4096, false},
        Case{0, 1, 0, false}, Case{0, 0, 0, true}}) {
    const Frame frame{.kind = FrameKind::kPush,
                      .is_in_window = true,
                      .payload_bytes = each.bytes,
                      .place = each.place};
    EXPECT_EQ(DecodeFrame(EncodeFrame(frame), each.window).ok(), each.is_allowed)
        << each.place << " + " << each.bytes << " of " << each.window;
  }
}

}  // namespace
}  // namespace mydist::ps
