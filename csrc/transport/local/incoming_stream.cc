#include "transport/local/incoming_stream.h"

#include <algorithm>
#include <string>
#include <utility>

namespace mydist::local {

Result<std::optional<Bytes>> IncomingStream::Next() {
  if (header_have_ < header_.size()) {
    MYDIST_ASSIGN_OR_RETURN(const bool is_complete, Fill(header_, header_have_));
    if (!is_complete) return std::optional<Bytes>();
    MYDIST_RETURN_IF_ERROR(BeginPayload());
  }
  MYDIST_ASSIGN_OR_RETURN(const bool is_complete, Fill(payload_, payload_have_));
  if (!is_complete) return std::optional<Bytes>();
  header_have_ = 0;
  payload_have_ = 0;
  return std::optional(std::exchange(payload_, {}));
}

Result<bool> IncomingStream::Fill(std::span<uint8_t> whole, size_t& have) {
  if (have == whole.size()) return true;
  MYDIST_ASSIGN_OR_RETURN(const size_t available, ring_.Available());
  if (available == 0) return false;
  const size_t count = std::min(available, whole.size() - have);
  ring_.Take(whole.subspan(have, count));
  wants_ring_ = ring_.Release() || wants_ring_;
  have += count;
  return have == whole.size();
}

Status IncomingStream::BeginPayload() {
  MessageHeader header{};
  std::memcpy(&header, header_.data(), sizeof header);
  if (header.magic != kMessageMagic) {
    header_have_ = 0;
    return Status::Internal("sent something through shared memory that is no control message");
  }
  if (int64_t{header.payload_bytes} > kMaxControlMessageBytes) {
    header_have_ = 0;
    return Status::Internal("announced a control message of " +
                            std::to_string(header.payload_bytes) + " bytes, expected at most " +
                            std::to_string(kMaxControlMessageBytes));
  }
  payload_.resize(header.payload_bytes);
  return Status::Ok();
}

}  // namespace mydist::local
