#include "ps/port/frame_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "ps/port/socket.h"

namespace mydist::ps {
namespace {

Status EndedEarly() { return Status::PeerLost("it ended in the middle of a frame"); }

}  // namespace

Status Broke(int error) {
  return Status::PeerLost(std::string("it broke: ") + std::strerror(error));
}

Result<FrameReader::Found> FrameReader::Next(int socket, Frame& frame, Payload& payload) {
  if (!has_header_) {
    const Result<Found> header = ReadHeader(socket);
    if (!header.ok() || *header != Found::kFrame) return header;
    MYDIST_RETURN_IF_ERROR(BeginPayload());
    has_header_ = true;
  }
  const Result<Found> rest = ReadInline(socket);
  if (!rest.ok() || *rest != Found::kFrame) return rest;
  frame = frame_;
  payload = TakePayload();
  has_header_ = false;
  return Found::kFrame;
}

Result<FrameReader::Found> FrameReader::ReadHeader(int socket) {
  while (Ahead() < kFrameBytes) {
    if (std::exchange(is_drained_, false)) return Found::kNothing;
    std::copy(ahead_.begin() + begin_, ahead_.begin() + end_, ahead_.begin());
    end_ -= std::exchange(begin_, 0);
    const std::span<uint8_t> room = std::span(ahead_).subspan(end_);
    const Moved moved = Receive(socket, room);
    if (moved.error == EAGAIN) return Found::kNothing;
    if (moved.error != 0) return Broke(moved.error);
    if (moved.is_end()) return Ahead() == 0 ? Result<Found>(Found::kEnd) : EndedEarly();
    end_ += moved.bytes;
    is_drained_ = moved.bytes < room.size();
  }
  const auto bytes = std::span(ahead_).subspan(begin_).first<kFrameBytes>();
  begin_ += kFrameBytes;
  MYDIST_ASSIGN_OR_RETURN(frame_,
                          DecodeFrame(bytes, window_ == nullptr ? 0 : window_->memory().size()));
  return Found::kFrame;
}

Status FrameReader::BeginPayload() {
  inline_bytes_ = 0;
  inline_ = nullptr;
  if (frame_.is_in_window || frame_.payload_bytes == 0) return Status::Ok();
  try {
    inline_ = TakeBuffer(frame_.payload_bytes);
  } catch (const std::bad_alloc&) {
    return Status::Internal("there is no memory for a payload of " +
                            std::to_string(frame_.payload_bytes) + " bytes");
  }
  return Status::Ok();
}

Result<FrameReader::Found> FrameReader::ReadInline(int socket) {
  while (inline_ != nullptr && inline_bytes_ < frame_.payload_bytes) {
    const std::span<uint8_t> room(inline_.get() + inline_bytes_,
                                  frame_.payload_bytes - inline_bytes_);
    if (Ahead() > 0) {
      const size_t part = std::min(room.size(), Ahead());
      std::copy_n(ahead_.begin() + begin_, part, room.begin());
      begin_ += part;
      inline_bytes_ += part;
      continue;
    }
    if (std::exchange(is_drained_, false)) return Found::kNothing;
    const Moved moved = Receive(socket, room);
    if (moved.error == EAGAIN) return Found::kNothing;
    if (moved.error != 0) return Broke(moved.error);
    if (moved.is_end()) return EndedEarly();
    inline_bytes_ += moved.bytes;
    is_drained_ = moved.bytes < room.size();
  }
  return Found::kFrame;
}

Payload FrameReader::TakePayload() {
  if (frame_.payload_bytes == 0) return {};
  if (!frame_.is_in_window) return Payload(std::move(inline_), frame_.payload_bytes);
  // The memory stays mapped as long as the payload needs it, whatever becomes of the connection.
  return Payload(window_->memory().subspan(frame_.place, frame_.payload_bytes),
                 {.on_release = [window = window_] {}});
}

}  // namespace mydist::ps
