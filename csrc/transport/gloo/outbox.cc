#include "transport/gloo/outbox.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

namespace mydist {

Status Outbox::Send(FrameKind kind, Bytes payload, int cause_rank) {
  MutexLock lock(mutex_);
  return SendLocked(kind, std::move(payload), cause_rank);
}

Status Outbox::SendLocked(FrameKind kind, Bytes payload, int cause_rank) {
  if (said_goodbye_)
    return Status::Aborted("the connection to rank " + std::to_string(peer_) +
                           " is closing and takes no more messages");
  Frame frame;
  frame.magic = kFrameMagic;
  frame.kind = kind;
  frame.payload_bytes = payload.size();
  frame.received_count = received_count_;
  frame.cause_rank = cause_rank;
  Sent sent;
  sent.bytes.resize(sizeof(frame) + payload.size());
  std::memcpy(sent.bytes.data(), &frame, sizeof(frame));
  std::copy(payload.begin(), payload.end(), sent.bytes.begin() + sizeof(frame));
  const auto total_bytes = static_cast<int64_t>(sent.bytes.size());
  const int64_t eager_bytes = std::min(total_bytes, kEagerBytes);
  try {
    sent.buffer = context_->MakeBuffer(sent.bytes.data(), total_bytes);
    sent.buffer->send(peer_, kEagerSlot, 0, static_cast<size_t>(eager_bytes));
    if (total_bytes > eager_bytes) {
      sent.pieces = 2;
      sent.buffer->send(peer_, kRestSlot, static_cast<size_t>(eager_bytes),
                        static_cast<size_t>(total_bytes - eager_bytes));
    }
  } catch (const std::exception& error) {
    return Status::PeerLost("cannot send to rank " + std::to_string(peer_) +
                            ": its connection is closed (" + error.what() + ")")
        .About({.ranks = {peer_}});
  }
  unacknowledged_.push_back(std::move(sent));
  unannounced_count_ = 0;
  unannounced_bytes_ = 0;
  said_goodbye_ = kind == FrameKind::kGoodbye;
  return Status::Ok();
}

void Outbox::Acknowledge(uint64_t count) {
  MutexLock lock(mutex_);
  try {
    while (acknowledged_count_ < count && !unacknowledged_.empty()) {
      Sent& oldest = unacknowledged_.front();
      // The peer has the frame, so these return at once; they only let Gloo's own thread finish.
      for (; oldest.pieces > 0; --oldest.pieces) oldest.buffer->waitSend(kGlooForever);
      unacknowledged_.pop_front();
      ++acknowledged_count_;
    }
  } catch (const std::exception&) {
    // The connection broke; its receiver thread reports that.
  }
}

Status Outbox::NoteReceived(int64_t payload_bytes) {
  MutexLock lock(mutex_);
  ++received_count_;
  ++unannounced_count_;
  unannounced_bytes_ += payload_bytes;
  const bool due =
      unannounced_count_ >= kAcknowledgeFrames || unannounced_bytes_ >= kAcknowledgeBytes;
  if (!due || said_goodbye_) return Status::Ok();
  return SendLocked(FrameKind::kAcknowledge, {}, -1);
}

Status Outbox::Flush(TimePoint deadline) {
  MutexLock lock(mutex_);
  try {
    for (Sent& sent : unacknowledged_) {
      for (; sent.pieces > 0; --sent.pieces) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Now());
        sent.buffer->waitSend(deadline == kNever ? kGlooForever
                                                 : std::max(left, std::chrono::milliseconds(0)));
      }
    }
  } catch (const std::exception& error) {
    return Status::Timeout("rank " + std::to_string(peer_) +
                           " did not take all messages before the deadline: " + error.what());
  }
  return Status::Ok();
}

}  // namespace mydist
