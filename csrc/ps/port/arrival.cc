#include "ps/port/arrival.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "ps/port/proof.h"

namespace mydist::ps {
namespace {

constexpr std::chrono::seconds kHandshakeLimit{3};  // As at the rendezvous.

}  // namespace

Arrival::Arrival(std::shared_ptr<Reception> reception, Socket socket, bool is_local)
    : reception_(std::move(reception)),
      socket_(std::move(socket)),
      is_local_(is_local),
      watch_(reception_->strand()),
      deadline_(reception_->strand(), kHandshakeLimit) {}

void Arrival::Start() {
  if (const Status peer = CheckPeer(); !peer.ok()) return TurnAway(peer.message());
  if (!is_local_) PrepareTcp(socket_.number());
  if (const Status watch = watch_.Start(socket_.number()); !watch.ok()) {
    return TurnAway(watch.message());
  }
  deadline_.async_wait([self = shared_from_this()](const asio::error_code& cancelled) {
    if (!cancelled) self->TurnAway("it did not finish the handshake in time");
  });
  Expect(Step::kHello, kHelloBytes);
  Read();
}

Status Arrival::CheckPeer() {
  if (!is_local_) {
    from_ = PeerText(socket_.number());
    return Status::Ok();
  }
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket_.number(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Status::Internal(std::string("its process is not known: ") + std::strerror(errno));
  }
  from_ = "process " + std::to_string(peer.pid);
  if (peer.uid == geteuid()) return Status::Ok();
  return Status::Internal("its user is " + std::to_string(peer.uid) + ", expected " +
                          std::to_string(geteuid()));
}

void Arrival::TurnAway(const std::string& why) {
  if (is_over_) return;
  MYDIST_LOG(kWarning) << "server " << reception_->options().server << " closes a connection from "
                       << from_ << ": " << why;
  Close();
  reception_->Forget(shared_from_this());
}

void Arrival::Close() {
  is_over_ = true;
  deadline_.cancel();
  watch_.Stop();
  socket_.Close();
}

void Arrival::Expect(Step step, size_t byte_count) {
  step_ = step;
  got_ = 0;
  expected_ = byte_count;
}

void Arrival::Read() {
  while (!is_over_) {
    const auto room = std::span(bytes_).subspan(got_, expected_ - got_);
    const bool may_bring_file = is_local_ && step_ >= Step::kGreetingLength;
    const Moved moved = may_bring_file ? ReceiveWithDescriptor(socket_.number(), room, file_)
                                       : Receive(socket_.number(), room);
    if (moved.error == EAGAIN) break;
    if (moved.error != 0) return TurnAway(std::string("it broke: ") + std::strerror(moved.error));
    if (moved.is_end()) return TurnAway("it ended in the handshake; it may have another key");
    got_ += moved.bytes;
    if (got_ < expected_) continue;
    if (const Status taken = Take(); !taken.ok()) return TurnAway(taken.message());
  }
  if (is_over_) return;
  watch_.ForBytes([self = shared_from_this()] { self->Read(); });
}

Status Arrival::Take() {
  switch (step_) {
    case Step::kHello:
      return TakeHello();
    case Step::kProof:
      return TakeProof();
    case Step::kGreetingLength: {
      MYDIST_ASSIGN_OR_RETURN(const size_t length,
                              DecodeGreetingLength(std::span(bytes_).first<4>()));
      Expect(Step::kGreeting, length);
      return Status::Ok();
    }
    case Step::kGreeting:
      return TakeGreeting();
  }
  return Status::Ok();
}

Status Arrival::TakeHello() {
  const Result<Nonce> worker = DecodeHello(std::span(bytes_).first<kHelloBytes>());
  if (!worker.ok()) {
    // Another version learns at least which one this is.
    const bool is_mydist = worker.status().code() == StatusCode::kVersionMismatch;
    if (is_mydist) (void)Answer(EncodeVersion());
    return worker.status();
  }
  worker_nonce_ = *worker;
  MYDIST_ASSIGN_OR_RETURN(server_nonce_, FreshNonce());
  MYDIST_ASSIGN_OR_RETURN(const Proof proof, Prove(reception_->options().key, Side::kServer,
                                                   worker_nonce_, server_nonce_));
  MYDIST_RETURN_IF_ERROR(Answer(EncodeReply({server_nonce_, proof})));
  Expect(Step::kProof, kProofBytes);
  return Status::Ok();
}

Status Arrival::TakeProof() {
  Proof got;
  std::memcpy(got.data(), bytes_.data(), got.size());
  MYDIST_ASSIGN_OR_RETURN(const Proof expected, Prove(reception_->options().key, Side::kWorker,
                                                      worker_nonce_, server_nonce_));
  if (!AreEqual(got, expected)) return Status::Internal("it has another key");
  Expect(Step::kGreetingLength, sizeof(uint32_t));
  return Status::Ok();
}

Status Arrival::TakeGreeting() {
  MYDIST_ASSIGN_OR_RETURN(const Greeting worker, DecodeGreeting(std::span(bytes_).first(got_)));
  const ListenOptions& options = reception_->options();
  Greeting own{.self = {.number = options.server, .pid = getpid(), .host = options.host_name}};
  Connection::Parts parts{.peer = worker.self, .place = reception_->TakePlace()};
  if (parts.place == nullptr) {
    own.refusal = "server " + std::to_string(options.server) + " has " +
                  std::to_string(options.most_links) + " workers already, its limit";
    (void)Answer(EncodeGreeting(own));
    return Status::Internal(own.refusal);
  }
  parts.window = MapWindow(worker.window_bytes);
  parts.text = parts.window != nullptr ? "over shared memory"
               : is_local_             ? "over a Unix socket"
                                       : "over TCP from " + from_;
  own.window_bytes = parts.window == nullptr ? 0 : worker.window_bytes;
  MYDIST_RETURN_IF_ERROR(Answer(EncodeGreeting(own)));
  is_over_ = true;
  deadline_.cancel();
  watch_.Stop();
  parts.socket = std::move(socket_);
  reception_->Welcome(std::move(parts));
  reception_->Forget(shared_from_this());
  return Status::Ok();
}

std::shared_ptr<Window> Arrival::MapWindow(uint64_t bytes) const {
  if (bytes == 0 || !file_.is_open()) return nullptr;
  Result<std::shared_ptr<Window>> window = Window::Map(file_, bytes);
  if (window.ok()) return *window;
  MYDIST_LOG(kWarning) << "server " << reception_->options().server
                       << " uses no shared memory with " << from_ << ": "
                       << window.status().message();
  return nullptr;
}

// So few bytes always have room in a socket that has sent next to nothing.
Status Arrival::Answer(std::span<const uint8_t> bytes) {
  iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  const Moved moved = SendParts(socket_.number(), std::span(&part, 1));
  if (moved.error == 0 && moved.bytes == bytes.size()) return Status::Ok();
  return Status::PeerLost(std::string("it takes no answer: ") + std::strerror(moved.error));
}

}  // namespace mydist::ps
