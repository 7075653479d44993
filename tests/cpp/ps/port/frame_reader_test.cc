// What arrives on a socket, however it is cut.
#include "ps/port/frame_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <vector>

#include "ps/port/link_pair.h"
#include "ps/port/socket.h"

namespace mydist::ps::testing {
namespace {

using Found = FrameReader::Found;

// Both ends of a connection, and what is read at the near one.
class Reading {
 public:
  explicit Reading(std::shared_ptr<Window> window = nullptr) : reader_(std::move(window)) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    near_ = Descriptor(ends[0]);
    far_ = Descriptor(ends[1]);
  }

  void End() { far_.Close(); }
  void Arrives(std::span<const uint8_t> bytes) {
    ASSERT_EQ(send(far_.number(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }
  Result<Found> Next() { return reader_.Next(near_.number(), frame_, payload_); }
  void ExpectNothing() {
    const Result<Found> found = Next();
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_EQ(*found, Found::kNothing);
  }
  void ExpectFrame(const Frame& frame, std::span<const uint8_t> payload) {
    const Result<Found> found = Next();
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    ASSERT_EQ(*found, Found::kFrame);
    EXPECT_EQ(frame_, frame);
    EXPECT_THAT(payload_.bytes(), ::testing::ElementsAreArray(payload));
  }

  // The same, once all has arrived.
  Result<Found> NextOfAll() {
    Result<Found> found = Next();
    if (found.ok() && *found == Found::kNothing) found = Next();
    return found;
  }
  Payload& payload() { return payload_; }

 private:
  Descriptor near_;
  Descriptor far_;
  FrameReader reader_;
  Frame frame_;
  Payload payload_;
};

TEST(FrameReader, TakesFramesThatArriveByteByByte) {
  const Frame frame{.kind = FrameKind::kPush, .sequence = 5, .payload_bytes = 9};
  const std::vector<uint8_t> payload = Bytes(9, 3);
  const FrameBytes header = EncodeFrame(frame);
  std::vector<uint8_t> all(header.begin(), header.end());
  all.insert(all.end(), payload.begin(), payload.end());
  Reading reading;
  for (const uint8_t& byte : all) {
    reading.ExpectNothing();
    reading.Arrives(std::span(&byte, 1));
  }
  reading.ExpectFrame(frame, payload);
}

TEST(FrameReader, TakesManyFramesThatArriveAtOnce) {
  std::vector<uint8_t> all;
  const std::vector<uint8_t> payload = Bytes(100, 3);
  std::vector<Frame> frames;
  for (uint64_t i = 0; i < 200; ++i) {
    const Frame& frame = frames.emplace_back(
        Frame{.kind = FrameKind::kPush, .sequence = i, .payload_bytes = i % 100});
    const FrameBytes header = EncodeFrame(frame);
    all.insert(all.end(), header.begin(), header.end());
    all.insert(all.end(), payload.begin(), payload.begin() + frame.payload_bytes);
  }
  Reading reading;
  reading.Arrives(all);
  for (const Frame& frame : frames) {
    reading.ExpectFrame(frame, std::span(payload).first(frame.payload_bytes));
  }
  reading.ExpectNothing();
}

TEST(FrameReader, TellsAnEndBetweenFramesFromOneWithin) {
  const FrameBytes header = EncodeFrame({.kind = FrameKind::kPush, .payload_bytes = 10});
  for (const size_t there : {size_t{0}, size_t{1}, header.size()}) {
    Reading reading;
    if (there > 0) reading.Arrives(std::span(header).first(there));
    reading.End();
    const Result<Found> found = reading.NextOfAll();
    if (there == 0) {
      ASSERT_TRUE(found.ok());
      EXPECT_EQ(*found, Found::kEnd);
    } else {
      EXPECT_EQ(found.status().code(), StatusCode::kPeerLost) << there;
    }
  }
}

TEST(FrameReader, RefusesBytesThatAreNoFrame) {
  Reading reading;
  reading.Arrives(std::vector<uint8_t>(kFrameBytes, 'x'));
  EXPECT_EQ(reading.Next().status().code(), StatusCode::kInternal);
}

TEST(FrameReader, RefusesAWindowThatTheConnectionDoesNotHave) {
  Reading reading;
  reading.Arrives(
      EncodeFrame({.kind = FrameKind::kPush, .is_in_window = true, .payload_bytes = 1}));
  EXPECT_EQ(reading.Next().status().code(), StatusCode::kInternal);
}

TEST(FrameReaderWithWindow, LetsAPayloadOutliveTheReader) {
  Descriptor file;
  std::shared_ptr<Window> window = Window::Make(4096, file).value();
  window->memory()[10] = 42;
  Payload payload;
  {
    Reading reading(std::move(window));
    reading.Arrives(EncodeFrame(
        {.kind = FrameKind::kPush, .is_in_window = true, .payload_bytes = 1, .place = 10}));
    ASSERT_EQ(reading.Next().value(), Found::kFrame);
    payload = std::move(reading.payload());
  }
  ASSERT_EQ(payload.bytes().size(), 1);
  EXPECT_EQ(payload.bytes()[0], 42);  // Still mapped.
  payload.Copy();
  EXPECT_FALSE(payload.is_borrowed());
  EXPECT_EQ(payload.bytes()[0], 42);
}

}  // namespace
}  // namespace mydist::ps::testing
