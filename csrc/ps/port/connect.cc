// Connect: the handshake of greeting.h, seen from the worker. It blocks the thread that calls it.
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "ps/port/connection.h"
#include "ps/port/greeting.h"
#include "ps/port/link.h"
#include "ps/port/proof.h"
#include "ps/port/socket.h"
#include "ps/port/window.h"

namespace mydist::ps {
namespace {

constexpr int kRetryMilliseconds = 5;
constexpr int kConnectingFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

// A socket whose calls block until the deadline.
class Dialogue {
 public:
  Dialogue(Socket socket, TimePoint deadline) : socket_(std::move(socket)), deadline_(deadline) {}

  Socket& socket() { return socket_; }

  Status Reach(const sockaddr* address, socklen_t bytes) {
    while (connect(socket_.number(), address, bytes) != 0) {
      if (errno == EINPROGRESS || errno == EINTR) return AwaitConnection();
      // A Unix socket whose backlog is full says only this, and tells of no room later.
      if (errno != EAGAIN) return CannotConnect(errno);
      if (Now() >= deadline_) return TooLate();
      poll(nullptr, 0, kRetryMilliseconds);
    }
    return Status::Ok();
  }

  // With a descriptor, unless it is closed.
  Status Send(std::span<const uint8_t> bytes, const Descriptor& file = Descriptor()) {
    iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
    const Moved moved = file.is_open() ? SendWithDescriptor(socket_.number(), bytes, file.number())
                                       : SendParts(socket_.number(), std::span(&part, 1));
    // So few bytes always have room.
    return moved.error == 0 && moved.bytes == bytes.size() ? Status::Ok() : Ended(moved.error);
  }

  Status Receive(std::span<uint8_t> into) {
    while (!into.empty()) {
      const Moved moved = ps::Receive(socket_.number(), into);
      if (moved.error == EAGAIN) {
        MYDIST_RETURN_IF_ERROR(Await(POLLIN));
        continue;
      }
      if (moved.error != 0 || moved.is_end()) return Ended(moved.error);
      into = into.subspan(moved.bytes);
    }
    return Status::Ok();
  }

 private:
  static Status Ended(int error) {
    return Status::PeerLost(std::string("it ended the handshake") +
                            (error == 0 ? "" : std::string(": ") + std::strerror(error)));
  }

  static Status TooLate() { return Status::Timeout("it gave no answer in time"); }

  Status AwaitConnection() {
    MYDIST_RETURN_IF_ERROR(Await(POLLOUT));
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(socket_.number(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    return error == 0 ? Status::Ok() : CannotConnect(error);
  }

  // Where nothing listens, the server is no more.
  static Status CannotConnect(int error) {
    return Status::PeerLost(std::strerror(error))
        .About({.finding = error == ECONNREFUSED ? kDeadFinding : ""});
  }

  Status Await(int16_t events) {
    while (true) {
      const TimePoint now = Now();
      if (now >= deadline_) return TooLate();
      const auto rest = std::min<Duration>(deadline_ - now, std::chrono::seconds(60));
      const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(rest).count();
      pollfd waiting{socket_.number(), events, 0};
      if (poll(&waiting, 1, static_cast<int>(milliseconds)) > 0) return Status::Ok();
    }
  }

  Socket socket_;
  const TimePoint deadline_;
};

// Proves the key to the server, and lets it prove the key.
Status ProveBoth(Dialogue& dialogue, const JobKey& key) {
  MYDIST_ASSIGN_OR_RETURN(const Nonce own, FreshNonce());
  MYDIST_RETURN_IF_ERROR(dialogue.Send(EncodeHello(own)));
  std::array<uint8_t, kReplyBytes> bytes;
  // A server of another version sends no more than these.
  const auto version = std::span(bytes).first<kVersionBytes>();
  MYDIST_RETURN_IF_ERROR(dialogue.Receive(version));
  MYDIST_RETURN_IF_ERROR(CheckVersion(version));
  MYDIST_RETURN_IF_ERROR(dialogue.Receive(std::span(bytes).subspan<kVersionBytes>()));
  MYDIST_ASSIGN_OR_RETURN(const Reply reply, DecodeReply(bytes));
  MYDIST_ASSIGN_OR_RETURN(const Proof expected, Prove(key, Side::kServer, own, reply.nonce));
  if (!AreEqual(reply.proof, expected)) {
    return Status::Internal("it has another key. Start workers and servers as one job.");
  }
  MYDIST_ASSIGN_OR_RETURN(const Proof proof, Prove(key, Side::kWorker, own, reply.nonce));
  return dialogue.Send(proof);
}

Result<Greeting> ReceiveGreeting(Dialogue& dialogue) {
  std::array<uint8_t, sizeof(uint32_t)> length_bytes;
  MYDIST_RETURN_IF_ERROR(dialogue.Receive(length_bytes));
  MYDIST_ASSIGN_OR_RETURN(const size_t length, DecodeGreetingLength(length_bytes));
  std::array<uint8_t, kMaxGreetingBytes> bytes;
  MYDIST_RETURN_IF_ERROR(dialogue.Receive(std::span(bytes).first(length)));
  return DecodeGreeting(std::span(bytes).first(length));
}

std::shared_ptr<Window> MakeWindow(uint64_t bytes, Descriptor& file) {
  if (bytes == 0) return nullptr;
  Result<std::shared_ptr<Window>> window = Window::Make(bytes, file);
  if (window.ok()) return *window;
  MYDIST_LOG(kWarning) << "parameters travel through sockets: " << window.status().message();
  file.Close();
  return nullptr;
}

// A connection to one server, on its way.
class Attempt {
 public:
  Attempt(IoThreads& io, const Address& address, const ConnectOptions& options)
      : io_(io), address_(address), options_(options) {}

  Result<std::shared_ptr<Connection>> OverUnix() const {
    const UnixAddress to(address_.local);
    MYDIST_ASSIGN_OR_RETURN(Dialogue dialogue, Reach(AF_UNIX, to.get(), to.bytes()));
    return Finish(std::move(dialogue), options_.window_bytes, "over a Unix socket");
  }

  Result<std::shared_ptr<Connection>> OverTcp() const {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const std::string port = std::to_string(address_.port);
    if (const int error = getaddrinfo(address_.host.c_str(), port.c_str(), &hints, &found);
        error != 0) {
      return Status::PeerLost(gai_strerror(error));
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
    Status why;
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      Result<Dialogue> dialogue = Reach(each->ai_family, each->ai_addr, each->ai_addrlen);
      why = dialogue.status();
      if (!dialogue.ok()) continue;
      PrepareTcp(dialogue->socket().number());
      return Finish(std::move(*dialogue), 0, "over TCP to " + address_.host + ":" + port);
    }
    return why;
  }

 private:
  Result<Dialogue> Reach(int family, const sockaddr* to, socklen_t bytes) const {
    Descriptor made(socket(family, kConnectingFlags, 0));
    if (!made.is_open()) {
      return Status::Internal(std::string("the system has no socket left: ") +
                              std::strerror(errno));
    }
    Dialogue dialogue(Socket(std::move(made)), options_.deadline);
    MYDIST_RETURN_IF_ERROR(dialogue.Reach(to, bytes));
    return dialogue;
  }

  Result<std::shared_ptr<Connection>> Finish(Dialogue dialogue, uint64_t window_bytes,
                                             const std::string& text) const {
    MYDIST_RETURN_IF_ERROR(ProveBoth(dialogue, options_.key));
    Descriptor file;
    Connection::Parts parts{.window = MakeWindow(window_bytes, file), .text = text};
    const uint64_t offered = parts.window == nullptr ? 0 : window_bytes;
    MYDIST_RETURN_IF_ERROR(
        dialogue.Send(EncodeGreeting({.self = options_.self, .window_bytes = offered}), file));
    MYDIST_ASSIGN_OR_RETURN(const Greeting server, ReceiveGreeting(dialogue));
    if (!server.refusal.empty()) return Status::PeerLost(server.refusal);
    if (server.self.number != address_.server) {
      return Status::Internal("server " + std::to_string(server.self.number) +
                              " listens there, expected server " + std::to_string(address_.server));
    }
    if (server.window_bytes != offered) parts.window = nullptr;
    if (parts.window != nullptr) parts.text = "over shared memory";
    parts.peer = server.self;
    parts.socket = std::move(dialogue.socket());
    return Connection::Open(io_, std::move(parts));
  }

  IoThreads& io_;
  const Address& address_;
  const ConnectOptions& options_;
};

Status CannotReach(const Address& address, const Status& why) {
  const std::string at =
      address.host.empty() ? "" : " at " + address.host + ":" + std::to_string(address.port);
  return why.WithContext("cannot connect to server " + std::to_string(address.server) + at)
      .About({.host = address.host});
}

}  // namespace

Result<std::shared_ptr<Link>> Connect(std::shared_ptr<Io> io, const Address& address,
                                      const ConnectOptions& options, LinkEvents events) {
  const Attempt attempt(static_cast<IoThreads&>(*io), address, options);
  const bool has_tcp = !address.host.empty();
  Result<std::shared_ptr<Connection>> made = Status::PeerLost("it has no address");
  if (options.shares_memory && !address.local.empty()) made = attempt.OverUnix();
  // The server may be on another host, where its socket has no meaning, or of another user.
  const bool is_lost = !made.ok() && made.status().code() == StatusCode::kPeerLost;
  if (is_lost && has_tcp) made = attempt.OverTcp();
  if (!made.ok()) return CannotReach(address, made.status());
  (*made)->Run([events = std::move(events)] { return events; });
  return std::shared_ptr<Link>(*made);
}

}  // namespace mydist::ps
