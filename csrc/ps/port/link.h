// Link: a connection between a worker and a server, and how both sides get one. The network of the
// parameter server is in this folder alone: standalone Asio over TCP, or over a Unix socket with a
// window of shared memory between processes of one host.
//
// Handshake, before anything else is read: both sides prove that they know the job's key
// (HMAC-SHA256 over both nonces), as at mydistrun's rendezvous; then each introduces itself.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/status.h"
#include "ps/frame.h"
#include "ps/introduction.h"
#include "ps/payload.h"

namespace mydist::ps {

using JobKey = std::array<uint8_t, 32>;

// Where a server listens.
struct Address {
  int server = 0;
  std::string host;  // For TCP: a name or a number.
  uint16_t port = 0;
  std::string local;  // The name of its abstract Unix socket; empty: none.

  bool operator==(const Address&) const = default;
};

// One connection. Any thread; its events come from the threads of its Io. It lives until it closes,
// whether or not a pointer to it is kept.
class MYDIST_EXPORT Link {
 public:
  virtual ~Link() = default;

  // Queues a frame behind those before it; the frame and its payload leave in one gather write.
  // The payload stays as it is until `sent` is called, which is also when the link has closed. Any
  // thread calls it: this one, before Send returns, where the socket has room. on_closed comes
  // after it, unless Send came after on_closed. frame.payload_bytes must be payload.size(), unless
  // the payload is in the window: then it is empty.
  virtual void Send(const Frame& frame, std::span<const uint8_t> payload = {},
                    std::function<void()> sent = nullptr) = 0;
  // Memory that both sides see; empty over TCP. The worker's to give out: a server reads and writes
  // only what the frames of a worker name.
  virtual std::span<uint8_t> window() const = 0;
  virtual const Introduction& peer() const = 0;
  // "over shared memory" or "over TCP from 10.0.0.2:41234", for explain() and errors.
  virtual std::string Text() const = 0;
  // No frame is sent or received any more; on_closed follows with `why`. A second call does
  // nothing.
  virtual void Close(const Status& why) = 0;
};

// Called one at a time, on_closed last and once. They may call Send and Close.
struct LinkEvents {
  // The payload is the frame's: inline bytes or a part of the window. A frame that is no valid one
  // closes the link before this is called.
  std::function<void(const Frame& frame, Payload payload)> on_frame;
  // OK: the peer closed the connection. kPeerLost: it broke. kInternal: it sent something wrong.
  std::function<void(const Status& why)> on_closed;
};

// Io: threads that move bytes. Its end closes all of its links and waits for their on_closed; not
// to be called on one of its threads. A listener holds it.
class MYDIST_EXPORT Io {
 public:
  // kInternal when the system has no thread left. `name`: of the threads, at most 13 bytes.
  static Result<std::shared_ptr<Io>> Start(int threads, const char* name);
  virtual ~Io() = default;
  // Calls it on one of the threads, after `delay`.
  virtual void Post(std::function<void()> body, Duration delay = Duration::zero()) = 0;
  // Of an Io with one thread: the caller does its work until `is_over`, which it looks at after all
  // that it has done, or the deadline. False, at once: another caller does. `is_idle` says
  // afterwards whether nothing is under way, so that the thread may stay away for a moment.
  virtual bool Drive(const std::function<bool()>& is_over, const std::function<bool()>& is_idle,
                     TimePoint deadline) = 0;
  // The thread is back at once. A caller that drives looks whether it is over.
  virtual void Attend() = 0;
};

struct ListenOptions {
  int server = 0;
  std::string host_name;           // For the introduction.
  std::string bind = "127.0.0.1";  // The address of the interface; "" listens on no TCP port.
  bool shares_memory = true;       // Whether it listens on a Unix socket as well.
  JobKey key{};
  size_t most_links = 4096;  // More are refused.
};

class MYDIST_EXPORT Listener {
 public:
  // Chooses its port and the name of its socket. `on_link` is called for every worker that has
  // proved the key, on the link's own events' thread, before its first event.
  static Result<std::unique_ptr<Listener>> Open(
      std::shared_ptr<Io> io, const ListenOptions& options,
      std::function<LinkEvents(std::shared_ptr<Link>)> on_link);
  // Waits until on_link is called no more; not to be called by on_link. Links stay open.
  virtual ~Listener() = default;
  virtual const Address& address() const = 0;
};

struct ConnectOptions {
  JobKey key{};
  Introduction self;
  bool shares_memory = true;         // Whether to try the Unix socket first.
  uint64_t window_bytes = 16 << 20;  // Of shared memory; a whole number of pages.
  TimePoint deadline = kNever;
};

// Blocks. kPeerLost when nothing listens there (the finding is dead), the host cannot be reached or
// the other side ends the handshake, kTimeout after the deadline, kInternal when the other side has
// another key or no mydist server is there, kVersionMismatch when it speaks another version of the
// handshake. Events may come before it returns.
MYDIST_EXPORT Result<std::shared_ptr<Link>> Connect(std::shared_ptr<Io> io, const Address& address,
                                                    const ConnectOptions& options,
                                                    LinkEvents events);

}  // namespace mydist::ps
