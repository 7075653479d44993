#include "transport/gloo/receiver.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "world/departure.h"

namespace mydist {

Receiver::Receiver(Mesh* mesh, int peer)
    : mesh_(mesh),
      peer_(peer),
      eager_(static_cast<size_t>(kEagerBytes)),
      eager_buffer_(mesh->context().MakeBuffer(eager_.data(), kEagerBytes)),
      thread_([this] { Run(); }) {}

Receiver::~Receiver() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (waited_for_ != nullptr) waited_for_->abortWaitRecv();
  }
  thread_.join();
}

void Receiver::Run() {
  try {
    while (TakeFrame()) {
    }
  } catch (const std::exception& error) {
    mesh_->ReportLoss(
        peer_,
        Status::PeerLost("lost the connection to " + mesh_->Name(peer_) + ": " + error.what() +
                         ". That process has probably died; see its output and exit code.")
            .About({.ranks = {peer_}}));
  }
}

bool Receiver::TakeFrame() {
  // A frame shorter than the one before must not be completed by that one's bytes.
  std::fill(eager_.begin(), eager_.begin() + sizeof(Frame), uint8_t{0});
  eager_buffer_->recv(peer_, kEagerSlot, 0, static_cast<size_t>(kEagerBytes));
  if (!Await(eager_buffer_.get())) return false;
  Frame frame;
  std::memcpy(&frame, eager_.data(), sizeof(frame));
  if (Status checked = CheckFrame(frame, peer_); !checked.ok()) {
    mesh_->ReportLoss(peer_, checked);
    return false;
  }
  const auto payload_bytes = static_cast<int64_t>(frame.payload_bytes);
  const int64_t inline_bytes = std::min(payload_bytes, kEagerPayloadBytes);
  Bytes payload(frame.payload_bytes);
  std::copy_n(eager_.begin() + sizeof(Frame), inline_bytes, payload.begin());
  if (payload_bytes > inline_bytes) {
    GlooBuffer rest = mesh_->context().MakeBuffer(payload.data(), payload_bytes);
    rest->recv(peer_, kRestSlot, static_cast<size_t>(inline_bytes),
               static_cast<size_t>(payload_bytes - inline_bytes));
    if (!Await(rest.get())) return false;
  }
  return Handle(frame, std::move(payload));
}

bool Receiver::Handle(const Frame& frame, Bytes payload) {
  mesh_->outbox(peer_).Acknowledge(frame.received_count);
  if (frame.kind == FrameKind::kGoodbye) {
    HandleGoodbye(frame, payload);
    return false;
  }
  const auto payload_bytes = static_cast<int64_t>(payload.size());
  if (frame.kind == FrameKind::kMessage) mesh_->mailbox().Put({peer_, std::move(payload)});
  // A failure to acknowledge means the connection broke, which the next wait reports.
  const Status noted = mesh_->outbox(peer_).NoteReceived(payload_bytes);
  static_cast<void>(noted);
  return true;
}

void Receiver::HandleGoodbye(const Frame& frame, const Bytes& words) {
  const std::string why(words.begin(), words.begin() + static_cast<ptrdiff_t>(std::min(
                                                           words.size(), kMaxFarewellBytes)));
  const int cause = frame.cause_rank;
  const bool blames_other = cause >= 0 && cause < mesh_->size() && cause != mesh_->rank();
  if (blames_other && cause != peer_) {
    mesh_->ReportLoss(cause, PeerHasLeft(cause, mesh_->Name(cause), why));
  } else if (cause == mesh_->rank()) {
    mesh_->ReportLoss(peer_, Status::PeerLost(mesh_->Name(peer_) +
                                              " left because it lost its connection to this rank. "
                                              "Look for a network fault between the two hosts.")
                                 .About({.ranks = {peer_}}));
  }
  mesh_->states().MarkDeparted(peer_, why);
}

bool Receiver::Await(gloo::transport::UnboundBuffer* buffer) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    waited_for_ = buffer;
  }
  struct Clear {
    Receiver* self;
    ~Clear() {
      MutexLock lock(self->mutex_);
      self->waited_for_ = nullptr;
    }
  } clear{this};
  return buffer->waitRecv(kGlooForever);
}

}  // namespace mydist
