#include "transport/gloo/gloo_transport.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "base/status.h"
#include "world/departure.h"

namespace mydist {
namespace {

// How long the receiver thread of a broken connection may take to notice as well.
constexpr std::chrono::seconds kVerdictGrace{1};
// How long what a rank sent before its goodbye may take to be complete.
constexpr std::chrono::milliseconds kGoodbyeGrace{500};
// The same of a rank that has failed: this rank is to fail as well, and in time.
constexpr std::chrono::milliseconds kFailureGrace{100};

}  // namespace

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
    mesh_->ReportLoss(peer_, mesh_->LostConnection(peer_, error.what()));
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

// A wait for a piece is progress for the watchdog: short enough for a slow network.
std::atomic<int64_t> GlooTransport::chunk_bytes{int64_t{1} << 26};

Status GlooTransport::Exchange(std::span<const SendTransfer> sends,
                               std::span<const ReceiveTransfer> receives) {
  if (Status loss = mesh_->states().loss(); !loss.ok()) {
    // Also here: a peer may see this rank's connection close before that of the lost rank.
    mesh_->Break(loss);
    return loss;
  }
  Status status = PostAll(sends, receives);
  if (status.ok()) status = AwaitAll();
  if (!status.ok()) {
    if (watchdog_ != nullptr) status = watchdog_->LocateForOthers(status);
    mesh_->Break(status);
  }
  // Destroys the buffers: from here on Gloo does not touch the caller's memory.
  posted_.clear();
  return status;
}

Status GlooTransport::PostAll(std::span<const SendTransfer> sends,
                              std::span<const ReceiveTransfer> receives) {
  int peer = -1;
  try {
    // Receives first: a send whose receive is known goes out without a round trip.
    for (const ReceiveTransfer& receive : receives) {
      peer = receive.peer;
      Post(peer, receive.data, receive.bytes, /*is_receive=*/true);
    }
    for (const SendTransfer& send : sends) {
      peer = send.peer;
      Post(peer, const_cast<void*>(send.data), send.bytes, /*is_receive=*/false);
    }
  } catch (const std::exception& error) {
    return Verdict(peer, error.what());
  }
  return Status::Ok();
}

void GlooTransport::Post(int peer, void* data, int64_t bytes, bool is_receive) {
  if (bytes == 0) return;
  const int64_t limit = chunk_bytes.load();
  posted_.push_back(
      {peer, mesh_->context().MakeBuffer(data, bytes), ChunkCount(bytes, limit), is_receive});
  gloo::transport::UnboundBuffer* buffer = posted_.back().buffer.get();
  ForEachChunk(bytes, limit, [&](int64_t offset, int64_t length) {
    if (is_receive) {
      buffer->recv(peer, kTensorSlot, static_cast<size_t>(offset), static_cast<size_t>(length));
    } else {
      buffer->send(peer, kTensorSlot, static_cast<size_t>(offset), static_cast<size_t>(length));
    }
  });
}

Status GlooTransport::AwaitAll() {
  for (Posted& posted : posted_) {
    for (; posted.pieces > 0; --posted.pieces) MYDIST_RETURN_IF_ERROR(AwaitPiece(posted));
  }
  return Status::Ok();
}

Status GlooTransport::AwaitPiece(Posted& posted) {
  PeerStates& states = mesh_->states();
  struct Ticking {
    WaitTicker& ticker;
    ~Ticking() { ticker.End(); }
  } ticking{ticker_};
  WatchedWait wait(watchdog_);
  ticker_.Begin(wait.begin());
  TimePoint goodbye_end = kNever;  // Set when the peer has left.
  for (;;) {
    const PeerStates::Patience patience = states.BeginWait(posted.buffer.get(), posted.peer);
    if (patience == PeerStates::Patience::kNone) return states.loss();
    const bool has_left = patience == PeerStates::Patience::kBounded;
    bool done = false;
    std::string broken;
    try {
      if (has_left && goodbye_end == kNever) {
        goodbye_end =
            Now() + (states.farewell(posted.peer).empty() ? kGoodbyeGrace : kFailureGrace);
      }
      done = AwaitOrInterrupted(posted);
      if (!done && Now() >= goodbye_end) throw std::runtime_error("it has left the job");
    } catch (const std::exception& error) {
      broken = error.what();
      if (broken.empty()) broken = "unknown error";
      if (has_left) static_cast<void>(ReportLoss(posted.peer, broken.c_str()));
    }
    states.EndWait();
    if (!broken.empty()) return Verdict(posted.peer, broken.c_str());
    if (done) return Status::Ok();
    // Interrupted, by a loss, by this peer's goodbye or by the ticker: look again.
    const TimePoint now = Now();
    if (has_left || !wait.IsDue(now)) continue;
    const Status watched = wait.Look({&posted.peer, 1}, now);
    if (!watched.ok()) return GiveUp(watched);
  }
}

bool GlooTransport::AwaitOrInterrupted(Posted& posted) {
  return posted.is_receive ? posted.buffer->waitRecv(kGlooForever)
                           : posted.buffer->waitSend(kGlooForever);
}

// A loss that was reported meanwhile names the cause better.
Status GlooTransport::GiveUp(const Status& error) {
  if (Status loss = mesh_->states().loss(); !loss.ok()) return loss;
  mesh_->SetFarewell(FarewellWords(error));
  return error;
}

Status GlooTransport::ReportLoss(int peer, const char* what) {
  const std::string why = mesh_->states().farewell(peer);
  const bool has_left = !why.empty() || mesh_->states().HasDeparted(peer);
  Status loss = has_left ? PeerHasLeft(peer, mesh_->Name(peer), why)
                         : Status::PeerLost("lost the connection to " + mesh_->Name(peer) +
                                            " while moving a tensor: " + what + ". See its output.")
                               .About({.ranks = {peer}});
  mesh_->ReportLoss(peer, loss);
  return loss;
}

Status GlooTransport::Verdict(int peer, const char* what) {
  PeerStates& states = mesh_->states();
  states.AwaitEnded(peer, Now() + kVerdictGrace);
  if (Status loss = states.loss(); !loss.ok()) return loss;
  const Status own = ReportLoss(peer, what);
  // The rank to blame, else this peer: bytes are missing in any case.
  const Status first = states.loss();
  return first.ok() ? own : first;
}

GlooControlPlane::GlooControlPlane(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {
  const SignalBlock block;  // For the threads the receivers start.
  for (int peer = 0; peer < mesh_->size(); ++peer) {
    if (peer != mesh_->rank()) receivers_.push_back(std::make_unique<Receiver>(mesh_.get(), peer));
  }
}

Status GlooControlPlane::CheckPeer(int peer) {
  MYDIST_CHECK(peer >= 0 && peer < mesh_->size() && peer != mesh_->rank());
  if (mesh_->states().IsOpen(peer)) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(mesh_->states().loss());
  return PeerHasLeft(peer, mesh_->Name(peer), mesh_->states().farewell(peer));
}

Status GlooControlPlane::Send(int peer, Bytes payload) {
  MYDIST_RETURN_IF_ERROR(CheckControlMessage(payload));
  MYDIST_RETURN_IF_ERROR(CheckPeer(peer));
  const Status sent = mesh_->outbox(peer).Send(FrameKind::kMessage, std::move(payload));
  if (sent.code() != StatusCode::kPeerLost) return sent;
  // The connection has just broken. Its receiver thread knows whether a goodbye came before.
  mesh_->states().AwaitEnded(peer, Now() + kVerdictGrace);
  MYDIST_RETURN_IF_ERROR(CheckPeer(peer));
  return mesh_->LostConnection(peer, sent.message());
}

}  // namespace mydist
