// FrameReader: takes the bytes of a connection apart into frames and payloads. One thread at a
// time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "ps/frame.h"
#include "ps/payload.h"
#include "ps/port/window.h"

namespace mydist::ps {

// kPeerLost: a call on the socket of a connection has failed with this errno.
Status Broke(int error);

class FrameReader {
 public:
  // `window` may be none.
  explicit FrameReader(std::shared_ptr<Window> window) : window_(std::move(window)) {}

  enum class Found {
    kFrame,    // It is in `frame` and `payload`.
    kNothing,  // The rest of a frame is not there yet.
    kEnd,      // The other side has closed the connection between two frames.
  };
  // Does not block. kPeerLost when the connection has ended in the middle of a frame or broken,
  // kInternal when the bytes are no valid frame or there is no memory for the payload.
  Result<Found> Next(int socket, Frame& frame, Payload& payload);

 private:
  Result<Found> ReadHeader(int socket);
  Result<Found> ReadInline(int socket);
  Status BeginPayload();
  Payload TakePayload();
  size_t Ahead() const { return end_ - begin_; }

  const std::shared_ptr<Window> window_;
  // Read in one call, so that small frames that follow each other need no calls of their own.
  std::array<uint8_t, 4096> ahead_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool is_drained_ = false;  // The last call took all that was there.
  bool has_header_ = false;
  Frame frame_;
  Buffer inline_;
  size_t inline_bytes_ = 0;  // Of these that are there.
};

}  // namespace mydist::ps
