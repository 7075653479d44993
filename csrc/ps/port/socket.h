// Socket: a socket of ours, and the few calls on it. No socket of this folder is inherited: neither
// by a program that this process starts nor by a forked child, see base/own_sockets.h.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/own_sockets.h"
#include "base/status.h"

namespace mydist::ps {

// A descriptor that is closed with its owner. Moves only.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept : number_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this == &other) return *this;
    Close();
    number_ = other.Release();
    return *this;
  }

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void Close();

 private:
  int Release() { return std::exchange(number_, -1); }
  int number_;
};

// Moves only.
class Socket {
 public:
  Socket() = default;
  explicit Socket(Descriptor descriptor);
  Socket(Socket&&) noexcept = default;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { Close(); }

  int number() const { return descriptor_.number(); }
  bool is_open() const { return descriptor_.is_open(); }
  void Close();

 private:
  Descriptor descriptor_;
  std::unique_ptr<OwnSockets> own_;  // Ends before the descriptor is closed.
};

// A name of an abstract Unix socket, which no file stands for.
class UnixAddress {
 public:
  explicit UnixAddress(std::string_view name);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t bytes() const { return bytes_; }

 private:
  sockaddr_un address_{};
  socklen_t bytes_ = 0;
};

// What a call on a socket has done; it never blocks.
struct Moved {
  size_t bytes = 0;
  int error = 0;  // errno; 0: none. EAGAIN: nothing can be moved now.

  // Whether a receiving call found the end of the connection.
  bool is_end() const { return error == 0 && bytes == 0; }
};

Moved Receive(int socket, std::span<uint8_t> into);
// The same; `descriptor` becomes one that came along.
Moved ReceiveWithDescriptor(int socket, std::span<uint8_t> into, Descriptor& descriptor);
// All of `parts` in one call, as far as there is room.
Moved SendParts(int socket, std::span<iovec> parts);
// The same with a descriptor, which the bytes bring along; at least one byte.
Moved SendWithDescriptor(int socket, std::span<const uint8_t> bytes, int descriptor);

// Over TCP: frames leave at once, and a host that is gone is noticed after a minute.
void PrepareTcp(int socket);

// A socket that listens on a free port of the interface with this address; `port` becomes it.
Result<Socket> ListenOnTcp(const std::string& address, uint16_t& port);
// A socket that listens under a free abstract name; `name` becomes it.
Result<Socket> ListenOnUnix(std::string& name);

// "10.0.0.2:41234", or "[::1]:41234", of the other end.
std::string PeerText(int socket);

}  // namespace mydist::ps
