#include "ps/port/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

namespace mydist::ps {
namespace {

constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kWaitingConnections = 1024;  // The kernel's limit may be lower.

// Room for one descriptor next to the bytes.
union DescriptorRoom {
  cmsghdr alignment;
  char bytes[CMSG_SPACE(sizeof(int))];
};

Moved Outcome(ssize_t moved) {
  if (moved >= 0) return {.bytes = static_cast<size_t>(moved)};
  return {.error = errno == EWOULDBLOCK ? EAGAIN : errno};
}

Moved Deliver(int socket, const msghdr& message) {
  ssize_t moved = 0;
  do {
    moved = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (moved < 0 && errno == EINTR);
  return Outcome(moved);
}

void SetOption(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

Status CannotListen(const std::string& where, const std::string& why) {
  return Status::Internal("the parameter server cannot listen on " + where + ": " + why);
}

std::string NumericText(const sockaddr* address, socklen_t bytes) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(address, bytes, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  const bool has_colons = std::strchr(host, ':') != nullptr;
  return (has_colons ? "[" + std::string(host) + "]" : host) + ":" + port;
}

uint16_t PortOf(int socket) {
  sockaddr_storage own{};
  socklen_t bytes = sizeof(own);
  getsockname(socket, reinterpret_cast<sockaddr*>(&own), &bytes);
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

}  // namespace

void Descriptor::Close() {
  if (is_open()) close(Release());
}

Socket::Socket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  const int number = descriptor_.number();
  own_ = std::make_unique<OwnSockets>(std::span(&number, 1));
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this == &other) return *this;
  Close();
  descriptor_ = std::move(other.descriptor_);
  own_ = std::move(other.own_);
  return *this;
}

void Socket::Close() {
  own_.reset();
  descriptor_.Close();
}

UnixAddress::UnixAddress(std::string_view name) {
  name = name.substr(0, sizeof(address_.sun_path) - 1);
  address_.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address_.sun_path + 1);
  bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Moved Receive(int socket, std::span<uint8_t> into) {
  ssize_t moved = 0;
  do {
    moved = recv(socket, into.data(), into.size(), MSG_DONTWAIT);
  } while (moved < 0 && errno == EINTR);
  return Outcome(moved);
}

Moved ReceiveWithDescriptor(int socket, std::span<uint8_t> into, Descriptor& descriptor) {
  iovec part{into.data(), into.size()};
  DescriptorRoom room{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.bytes;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // The kernel closes what has no room here.
  ssize_t moved = 0;
  do {
    moved = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (moved < 0 && errno == EINTR);
  const Moved outcome = Outcome(moved);
  const cmsghdr* const header = moved > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof(number));
    descriptor = Descriptor(number);
  }
  return outcome;
}

Moved SendParts(int socket, std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return Deliver(socket, message);
}

Moved SendWithDescriptor(int socket, std::span<const uint8_t> bytes, int descriptor) {
  iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  DescriptorRoom room{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.bytes;
  message.msg_controllen = sizeof(room.bytes);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  return Deliver(socket, message);
}

void PrepareTcp(int socket) {
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

Result<Socket> ListenOnTcp(const std::string& address, uint16_t& port) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(address.c_str(), "0", &hints, &found); error != 0) {
    return CannotListen(address, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  Descriptor made(socket(found->ai_family, kSocketFlags, IPPROTO_TCP));
  if (!made.is_open() || bind(made.number(), found->ai_addr, found->ai_addrlen) != 0 ||
      listen(made.number(), kWaitingConnections) != 0) {
    return CannotListen(address, std::strerror(errno));
  }
  port = PortOf(made.number());
  return Socket(std::move(made));
}

Result<Socket> ListenOnUnix(std::string& name) {
  Descriptor made(socket(AF_UNIX, kSocketFlags, 0));
  for (int attempt = 0; made.is_open() && attempt < 4; ++attempt) {
    uint64_t number = 0;
    if (getrandom(&number, sizeof(number), 0) != sizeof(number)) break;
    char text[48];
    std::snprintf(text, sizeof(text), "mydist-ps-%016llx", static_cast<unsigned long long>(number));
    const UnixAddress address(text);
    if (bind(made.number(), address.get(), address.bytes()) != 0) continue;
    if (listen(made.number(), kWaitingConnections) != 0) break;
    name = text;
    return Socket(std::move(made));
  }
  return CannotListen("a Unix socket", std::strerror(errno));
}

std::string PeerText(int socket) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) {
    return "an unknown address";
  }
  return NumericText(reinterpret_cast<const sockaddr*>(&peer), bytes);
}

}  // namespace mydist::ps
