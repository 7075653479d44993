// RawPeer: one end of a connection that says what a test tells it to, byte by byte. It blocks.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "ps/port/greeting.h"
#include "ps/port/link_pair.h"
#include "ps/port/proof.h"
#include "ps/port/socket.h"

namespace mydist::ps::testing {

class RawPeer {
 public:
  explicit RawPeer(Socket socket) : socket_(std::move(socket)) {}

  static RawPeer ToTcp(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return To(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  static RawPeer ToUnix(const std::string& name) {
    const UnixAddress address(name);
    return To(AF_UNIX, address.get(), address.bytes());
  }

  int number() const { return socket_.number(); }
  void Close() { socket_.Close(); }

  template <typename Bytes>
  void Send(const Bytes& bytes) {
    send(number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  // Fewer where the connection ends first.
  std::vector<uint8_t> Receive(size_t count) {
    std::vector<uint8_t> bytes(count);
    size_t got = 0;
    while (got < count) {
      pollfd waiting{number(), POLLIN, 0};
      const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience);
      if (poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) break;
      const ssize_t more = recv(number(), bytes.data() + got, count - got, 0);
      if (more <= 0) break;
      got += static_cast<size_t>(more);
    }
    bytes.resize(got);
    return bytes;
  }
  // Whether the other side has closed the connection, without a byte before.
  bool IsClosed() { return Receive(1).empty(); }

  // As a worker with the key, up to its introduction.
  void ProveKey(const JobKey& key = TestKey()) {
    const Nonce own{1, 2, 3};
    Send(EncodeHello(own));
    const std::vector<uint8_t> bytes = Receive(kReplyBytes);
    ASSERT_EQ(bytes.size(), kReplyBytes);
    const Reply reply = DecodeReply(std::span(bytes).first<kReplyBytes>()).value();
    Send(Prove(key, Side::kWorker, own, reply.nonce).value());
  }
  Result<Greeting> ReceiveGreeting() {
    const std::vector<uint8_t> length = Receive(4);
    if (length.size() != 4) return Status::PeerLost("closed");
    MYDIST_ASSIGN_OR_RETURN(const size_t count, DecodeGreetingLength(std::span(length).first<4>()));
    return DecodeGreeting(Receive(count));
  }
  // A worker that the server has taken for a link.
  void BecomeWorker(const JobKey& key = TestKey()) {
    ProveKey(key);
    Send(EncodeGreeting({.self = {.number = 3, .pid = 77, .host = "worker-host"}}));
    ASSERT_TRUE(ReceiveGreeting().ok());
  }

 private:
  static RawPeer To(int family, const sockaddr* address, socklen_t bytes) {
    Descriptor made(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(made.number(), address, bytes), 0) << errno;
    return RawPeer(Socket(std::move(made)));
  }

  Socket socket_;
};

}  // namespace mydist::ps::testing
