#include "ps/frame.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace mydist::ps {
namespace {

constexpr uint8_t kInWindow = 1;

bool IsKnown(uint8_t kind) {
  return (kind >= static_cast<uint8_t>(FrameKind::kDeclare) &&
          kind <= static_cast<uint8_t>(FrameKind::kResume)) ||
         kind == static_cast<uint8_t>(FrameKind::kAnswer) ||
         kind == static_cast<uint8_t>(FrameKind::kTaken);
}

}  // namespace

FrameBytes EncodeFrame(const Frame& frame) {
  ByteWriter writer;
  writer.Reserve(kFrameBytes);
  writer.U32(kFrameMagic);
  writer.U8(kFrameVersion);
  writer.U8(static_cast<uint8_t>(frame.kind));
  writer.U8(frame.is_in_window ? kInWindow : 0);
  writer.U8(frame.code);
  writer.U32(frame.table);
  writer.U32(frame.piece);
  writer.U32(frame.worker);
  writer.U32(frame.epoch);
  writer.U64(frame.sequence);
  writer.U64(frame.version);
  writer.U64(frame.clock);
  writer.U64(frame.payload_bytes);
  writer.U64(frame.place);
  const std::vector<uint8_t> bytes = std::move(writer).Take();
  FrameBytes fixed;
  MYDIST_CHECK(bytes.size() == fixed.size());
  std::copy(bytes.begin(), bytes.end(), fixed.begin());
  return fixed;
}

Result<Frame> DecodeFrame(std::span<const uint8_t, kFrameBytes> bytes, uint64_t window_bytes) {
  ByteReader reader(bytes, "frame of the parameter server");
  const uint32_t magic = reader.U32();
  const uint8_t version = reader.U8();
  const uint8_t kind = reader.U8();
  const uint8_t flags = reader.U8();
  Frame frame{.kind = static_cast<FrameKind>(kind), .is_in_window = (flags & kInWindow) != 0};
  frame.code = reader.U8();
  frame.table = reader.U32();
  frame.piece = reader.U32();
  frame.worker = reader.U32();
  frame.epoch = reader.U32();
  frame.sequence = reader.U64();
  frame.version = reader.U64();
  frame.clock = reader.U64();
  frame.payload_bytes = reader.U64();
  frame.place = reader.U64();
  if (magic != kFrameMagic) reader.Fail("it does not begin with MYPS");
  if (version != kFrameVersion) {
    reader.Fail("got version " + std::to_string(version) + ", expected " +
                std::to_string(kFrameVersion));
  }
  if (!IsKnown(kind)) reader.Fail("kind " + std::to_string(kind) + " is unknown");
  if (flags > kInWindow) reader.Fail("flags " + std::to_string(flags) + " are unknown");
  if (frame.code >= kStatusCodeCount) {
    reader.Fail("code " + std::to_string(frame.code) + " is unknown");
  }
  if (frame.payload_bytes > kMaxPayloadBytes) {
    reader.Fail("its payload has " + std::to_string(frame.payload_bytes) + " bytes, at most " +
                std::to_string(kMaxPayloadBytes) + " are allowed");
  }
  if (frame.is_in_window &&
      (frame.place > window_bytes || frame.payload_bytes > window_bytes - frame.place)) {
    reader.Fail("its payload lies outside the window");
  }
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return frame;
}

std::string_view FrameKindName(FrameKind kind) {
  switch (kind) {
    case FrameKind::kDeclare:
      return "declare";
    case FrameKind::kStart:
      return "start";
    case FrameKind::kOpen:
      return "open";
    case FrameKind::kPush:
      return "push";
    case FrameKind::kPull:
      return "pull";
    case FrameKind::kPushPull:
      return "push_pull";
    case FrameKind::kFinish:
      return "finish";
    case FrameKind::kRemove:
      return "remove";
    case FrameKind::kOptions:
      return "set_options";
    case FrameKind::kPing:
      return "ping";
    case FrameKind::kGoodbye:
      return "goodbye";
    case FrameKind::kResume:
      return "resume";
    case FrameKind::kAnswer:
      return "answer";
    case FrameKind::kTaken:
      return "taken";
  }
  return "unknown";
}

}  // namespace mydist::ps
