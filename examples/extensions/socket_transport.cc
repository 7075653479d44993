// A transport from outside mydist: ranks of one host that talk over Unix-domain sockets.
//
//     MYDIST_PLUGINS=$PWD/libsocket_transport.so MYDIST_CONTROLLER=sockets mydistrun -np 2 python …
//
// Two sockets join each pair of ranks: one for control messages, served by a thread, and one for
// tensors, used by the thread that drives the engine. With MYDIST_SHARED_MEMORY=0 all bytes go this
// way.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "job/extension.h"
#include "transport/mailbox.h"
#include "transport/registry.h"
#include "world/departure.h"

namespace {

using namespace mydist;

Status SystemError(const std::string& call) {
  return Status::Internal("sockets: " + call + " failed: " + std::strerror(errno));
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct FrameHeader {
  uint32_t bytes;
  uint32_t is_farewell;
};

// Everything between this rank and the others; both planes share it.
class Mesh {
 public:
  enum class Presence { kHere, kClosed, kLost };

  Mesh(int rank, std::vector<Descriptor> control, std::vector<Descriptor> data)
      : rank_(rank),
        control_(std::move(control)),
        data_(std::move(data)),
        peers_(control_.size()),
        bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        thread_([this] { Serve(); }) {}

  ~Mesh() {
    {
      MutexLock lock(mutex_);
      ending_ = true;
    }
    Ring();
    thread_.join();
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(data_.size()); }
  int data(int peer) const { return data_[static_cast<size_t>(peer)].get(); }
  Mailbox& mailbox() { return mailbox_; }  // What has come from the others.

  Status Send(int peer, Bytes payload, bool is_farewell) MYDIST_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (At(peer).presence != Presence::kHere) return Gone(peer);
      const FrameHeader header{static_cast<uint32_t>(payload.size()), is_farewell ? 1U : 0U};
      const auto* bytes = reinterpret_cast<const uint8_t*>(&header);
      payload.insert(payload.begin(), bytes, bytes + sizeof(header));
      At(peer).out.push_back(std::move(payload));
    }
    Ring();
    return Status::Ok();
  }

  Status Check(int peer) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return At(peer).presence == Presence::kHere ? Status::Ok() : Gone(peer);
  }

  // Until all that was sent has left this process.
  Status Flush(TimePoint deadline) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (;;) {
      bool is_empty = true;
      for (const Peer& peer : peers_) is_empty = is_empty && peer.out.empty();
      if (is_empty) return Status::Ok();
      if (!changed_.WaitUntil(mutex_, deadline)) {
        return Status::Timeout("sockets: closing took longer than it may");
      }
    }
  }

  // Who still waits for tensors of ours learns that none will come.
  void EndTensors() const {
    for (const Descriptor& data : data_) {
      if (data.get() >= 0) shutdown(data.get(), SHUT_WR);
    }
  }

  // What has become of a peer whose socket for tensors has ended.
  Status Lost(int peer) MYDIST_EXCLUDES(mutex_) {
    const TimePoint deadline = Now() + std::chrono::seconds(1);
    MutexLock lock(mutex_);
    while (At(peer).presence == Presence::kHere && changed_.WaitUntil(mutex_, deadline)) {
    }
    return Gone(peer);
  }

 private:
  struct Peer {
    std::deque<Bytes> out;
    size_t written = 0;  // Of out.front().
    Bytes in;
    Presence presence = Presence::kHere;
    std::string farewell;
  };

  Peer& At(int peer) MYDIST_REQUIRES(mutex_) { return peers_[static_cast<size_t>(peer)]; }

  Status Gone(int peer) MYDIST_REQUIRES(mutex_) {
    const std::string who = "rank " + std::to_string(peer);
    if (At(peer).presence == Presence::kClosed) return PeerHasLeft(peer, who, At(peer).farewell);
    return Status::PeerLost(who + " closed its socket without a goodbye").About({.ranks = {peer}});
  }

  void Ring() const {
    const uint64_t one = 1;
    static_cast<void>(!write(bell_.get(), &one, sizeof(one)));
  }

  // The thread that moves control messages.
  void Serve() MYDIST_EXCLUDES(mutex_) {
    std::vector<pollfd> polled(control_.size() + 1);
    for (;;) {
      {
        MutexLock lock(mutex_);
        if (ending_) return;
        for (int peer = 0; peer < size(); ++peer) {
          const bool is_here = peer != rank_ && At(peer).presence == Presence::kHere;
          const short events = At(peer).out.empty() ? POLLIN : POLLIN | POLLOUT;
          polled[static_cast<size_t>(peer)] = {
              is_here ? control_[static_cast<size_t>(peer)].get() : -1, events, 0};
        }
      }
      polled.back() = {bell_.get(), POLLIN, 0};
      poll(polled.data(), polled.size(), -1);
      uint64_t count = 0;
      static_cast<void>(!read(bell_.get(), &count, sizeof(count)));
      MutexLock lock(mutex_);
      for (int peer = 0; peer < size(); ++peer) {
        const pollfd& entry = polled[static_cast<size_t>(peer)];
        if ((entry.revents & POLLOUT) != 0) Write(peer);
        if ((entry.revents & (POLLIN | POLLHUP | POLLERR)) != 0) Read(peer);
      }
      changed_.NotifyAll();
    }
  }

  void Write(int peer) MYDIST_REQUIRES(mutex_) {
    Peer& to = At(peer);
    while (!to.out.empty()) {
      const Bytes& front = to.out.front();
      const ssize_t sent =
          send(control_[static_cast<size_t>(peer)].get(), front.data() + to.written,
               front.size() - to.written, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0) return;  // Full, or gone: reading tells.
      to.written += static_cast<size_t>(sent);
      if (to.written < front.size()) return;
      to.out.pop_front();
      to.written = 0;
    }
  }

  void Read(int peer) MYDIST_REQUIRES(mutex_) {
    std::array<uint8_t, 65536> buffer;
    for (;;) {
      const ssize_t got = recv(control_[static_cast<size_t>(peer)].get(), buffer.data(),
                               buffer.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (got <= 0) {
        TakeFrames(peer);
        if (At(peer).presence != Presence::kHere) return;
        At(peer).presence = Presence::kLost;
        At(peer).out.clear();
        mailbox_.PutLoss(Gone(peer));
        return;
      }
      At(peer).in.insert(At(peer).in.end(), buffer.begin(), buffer.begin() + got);
    }
    TakeFrames(peer);
  }

  void TakeFrames(int peer) MYDIST_REQUIRES(mutex_) {
    Bytes& in = At(peer).in;
    size_t taken = 0;
    FrameHeader header{};
    while (in.size() - taken >= sizeof(header)) {
      std::memcpy(&header, in.data() + taken, sizeof(header));
      const size_t end = taken + sizeof(header) + header.bytes;
      if (in.size() < end) break;
      Bytes payload(in.begin() + static_cast<ptrdiff_t>(taken + sizeof(header)),
                    in.begin() + static_cast<ptrdiff_t>(end));
      taken = end;
      if (header.is_farewell == 0) {
        mailbox_.Put({peer, std::move(payload)});
        continue;
      }
      At(peer).farewell.assign(payload.begin(), payload.end());
      At(peer).presence = Presence::kClosed;
      At(peer).out.clear();
    }
    in.erase(in.begin(), in.begin() + static_cast<ptrdiff_t>(taken));
  }

  const int rank_;
  const std::vector<Descriptor> control_;  // By rank; none at our own.
  const std::vector<Descriptor> data_;
  Mailbox mailbox_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Peer> peers_ MYDIST_GUARDED_BY(mutex_);
  bool ending_ MYDIST_GUARDED_BY(mutex_) = false;
  const Descriptor bell_;
  std::thread thread_;
};

class SocketControlPlane final : public ControlPlane {
 public:
  explicit SocketControlPlane(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {}

  Status Send(int peer, Bytes payload) override {
    return mesh_->Send(peer, std::move(payload), false);
  }
  Status CheckPeer(int peer) override { return mesh_->Check(peer); }
  Result<std::optional<IncomingMessage>> Receive() override { return mesh_->mailbox().Take(); }
  void Await(TimePoint deadline) override { mesh_->mailbox().Await(deadline); }
  void Wake() override { mesh_->mailbox().Wake(); }
  void Attend(bool attended) override { mesh_->mailbox().Attend(attended); }
  void SetFarewell(const std::string& why) override {
    farewell_ = why.substr(0, kMaxFarewellBytes);
  }
  Status Close(TimePoint deadline) override {
    for (int peer = 0; peer < mesh_->size(); ++peer) {
      if (peer == mesh_->rank()) continue;
      // One that has gone needs no goodbye.
      static_cast<void>(mesh_->Send(peer, Bytes(farewell_.begin(), farewell_.end()), true).ok());
    }
    const Status flushed = mesh_->Flush(deadline);
    mesh_->EndTensors();
    return flushed;
  }

 private:
  const std::shared_ptr<Mesh> mesh_;
  std::string farewell_;
};

class SocketTransport final : public Transport {
 public:
  explicit SocketTransport(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {}

  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }

  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    std::vector<Open> outgoing(static_cast<size_t>(size()));
    std::vector<Open> incoming(static_cast<size_t>(size()));
    for (const SendTransfer& send : sends) {
      Add(outgoing, send.peer, static_cast<uint8_t*>(const_cast<void*>(send.data)), send.bytes);
    }
    for (const ReceiveTransfer& receive : receives) {
      Add(incoming, receive.peer, static_cast<uint8_t*>(receive.data), receive.bytes);
    }
    for (;;) {
      std::vector<pollfd> polled;
      for (int peer = 0; peer < size(); ++peer) {
        const auto at = static_cast<size_t>(peer);
        const int events =
            (outgoing[at].empty() ? 0 : POLLOUT) | (incoming[at].empty() ? 0 : POLLIN);
        if (events != 0) polled.push_back({mesh_->data(peer), static_cast<short>(events), 0});
      }
      if (polled.empty()) return Status::Ok();
      if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return SystemError("poll");
      for (int peer = 0; peer < size(); ++peer) {
        const auto at = static_cast<size_t>(peer);
        const bool is_alive =
            Move(outgoing[at],
                 [&](uint8_t* data, size_t bytes) {
                   return send(mesh_->data(peer), data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
                 }) &&
            Move(incoming[at], [&](uint8_t* data, size_t bytes) {
              return recv(mesh_->data(peer), data, bytes, MSG_DONTWAIT);
            });
        if (!is_alive) return mesh_->Lost(peer);
      }
    }
  }

 private:
  // What is left to move to or from one peer, in order.
  using Open = std::deque<std::pair<uint8_t*, int64_t>>;

  static void Add(std::vector<Open>& open, int peer, uint8_t* data, int64_t bytes) {
    if (bytes > 0) open[static_cast<size_t>(peer)].emplace_back(data, bytes);
  }

  // As much as goes without waiting; false when the socket has ended.
  template <typename MoveBytes>
  static bool Move(Open& open, MoveBytes move) {
    while (!open.empty()) {
      auto& [data, bytes] = open.front();
      const ssize_t moved = move(data, static_cast<size_t>(bytes));
      if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return true;
      if (moved <= 0) return false;
      data += moved;
      bytes -= moved;
      if (bytes == 0) open.pop_front();
    }
    return true;
  }

  const std::shared_ptr<Mesh> mesh_;
};

// A name in the kernel's abstract space, which no file stands for.
sockaddr_un AddressOf(const Bytes& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), std::min(name.size(), size_t{100}));
  return address;
}

// The first word on a socket: who connects, and what for.
struct Greeting {
  int32_t rank;
  int32_t is_data;
};

class SocketPlugin final : public BackendPlugin {
 public:
  std::string name() const override { return "sockets"; }
  std::string Description() const override { return "Unix-domain sockets, ranks of one host"; }

  Result<Connection> Connect(const BackendOptions& options) override {
    std::array<uint8_t, 16> nonce{};
    if (getrandom(nonce.data(), nonce.size(), 0) < 0) return SystemError("getrandom");
    const std::string prefix = "mydist-sockets-";
    Bytes own(prefix.begin(), prefix.end());
    own.insert(own.end(), nonce.begin(), nonce.end());
    const Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = AddressOf(own);
    if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        listen(listener.get(), 2 * options.size) != 0) {
      return SystemError("bind");
    }
    MYDIST_ASSIGN_OR_RETURN(const std::vector<Bytes> names,
                            BootstrapRound(options.exchange, options.size, own));
    std::vector<Descriptor> control(static_cast<size_t>(options.size));
    std::vector<Descriptor> data(static_cast<size_t>(options.size));
    for (int peer = 0; peer < options.rank; ++peer) {
      const auto at = static_cast<size_t>(peer);
      MYDIST_ASSIGN_OR_RETURN(control[at], Dial(names[at], {options.rank, 0}));
      MYDIST_ASSIGN_OR_RETURN(data[at], Dial(names[at], {options.rank, 1}));
    }
    const TimePoint deadline = Now() + options.config->connect_timeout;
    for (int missing = 2 * (options.size - 1 - options.rank); missing > 0; --missing) {
      Greeting greeting{};
      MYDIST_ASSIGN_OR_RETURN(Descriptor accepted, Accept(listener, deadline, greeting));
      if (greeting.rank <= options.rank || greeting.rank >= options.size) {
        return Status::Internal("sockets: rank " + std::to_string(greeting.rank) +
                                " connected, which is none of this job");
      }
      auto& room = greeting.is_data != 0 ? data : control;
      room[static_cast<size_t>(greeting.rank)] = std::move(accepted);
    }
    const auto mesh = std::make_shared<Mesh>(options.rank, std::move(control), std::move(data));
    Connection connection;
    connection.rank = options.rank;
    connection.size = options.size;
    connection.control = std::make_unique<SocketControlPlane>(mesh);
    connection.transport = std::make_unique<SocketTransport>(mesh);
    connection.exchange = options.exchange;
    return connection;
  }

 private:
  static Result<Descriptor> Dial(const Bytes& name, const Greeting& greeting) {
    Descriptor dialled(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = AddressOf(name);
    if (connect(dialled.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        send(dialled.get(), &greeting, sizeof(greeting), MSG_NOSIGNAL) != sizeof(greeting)) {
      return SystemError("connect");
    }
    return dialled;
  }

  static Result<Descriptor> Accept(const Descriptor& listener, TimePoint deadline,
                                   Greeting& greeting) {
    pollfd polled{listener.get(), POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Now());
    if (poll(&polled, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) != 1) {
      return Status::Timeout("sockets: other ranks did not connect in time");
    }
    Descriptor accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ucred peer{};
    socklen_t bytes = sizeof(peer);
    if (accepted.get() < 0 ||
        getsockopt(accepted.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 ||
        recv(accepted.get(), &greeting, sizeof(greeting), MSG_WAITALL) != sizeof(greeting)) {
      return SystemError("accept");
    }
    if (peer.uid != getuid()) {
      return Status::Internal("sockets: another user's process has connected");
    }
    return accepted;
  }
};

Status AddRow() {
  return RegisterTransport({.name = "sockets", .open = []() -> Result<BackendPlugin*> {
                              static SocketPlugin plugin;
                              return &plugin;
                            }});
}

}  // namespace

MYDIST_EXTENSION(AddRow)
