#include "ps/port/reception.h"

#include <sys/socket.h>

#include <asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "ps/port/arrival.h"

namespace mydist::ps {
namespace {

// Strangers beyond wait in the backlog of the socket; each has 3 s at most.
constexpr size_t kMostArrivals = 256;
constexpr std::chrono::milliseconds kPause{100};  // When the system has no descriptor left.

}  // namespace

Reception::Reception(IoThreads& io, const ListenOptions& options, OnLink on_link)
    : io_(io),
      options_(options),
      on_link_(std::move(on_link)),
      strand_(asio::make_strand(io.context())),
      pause_(strand_) {}

Status Reception::Listen(Address& address) {
  address.server = options_.server;
  if (!options_.bind.empty()) {
    MYDIST_ASSIGN_OR_RETURN(Socket socket, ListenOnTcp(options_.bind, address.port));
    address.host = options_.bind;
    doors_.push_back({.socket = std::move(socket)});
  }
  if (options_.shares_memory) {
    MYDIST_ASSIGN_OR_RETURN(Socket socket, ListenOnUnix(address.local));
    doors_.push_back({.socket = std::move(socket), .is_local = true});
  }
  for (Door& door : doors_) {
    door.watch = std::make_unique<Watch>(strand_);
    MYDIST_RETURN_IF_ERROR(door.watch->Start(door.socket.number()));
  }
  return Status::Ok();
}

void Reception::Start() {
  io_.Add(shared_from_this());
  asio::post(strand_, [self = shared_from_this()] { self->WaitAtDoors(); });
}

// --- The strand.

void Reception::WaitAtDoors() {
  for (size_t i = 0; i < doors_.size(); ++i) WaitAt(i);
}

void Reception::WaitAt(size_t door) {
  if (is_over_ || is_pausing_ || arrivals_.size() >= kMostArrivals) return;
  if (std::exchange(doors_[door].is_waiting, true)) return;
  doors_[door].watch->ForBytes([self = shared_from_this(), door] { self->Take(door); });
}

void Reception::Take(size_t door) {
  doors_[door].is_waiting = false;
  while (!is_over_ && arrivals_.size() < kMostArrivals) {
    if (!TakeOne(doors_[door])) break;
  }
  WaitAt(door);
}

// False: no more connections wait there.
bool Reception::TakeOne(Door& door) {
  Descriptor made(accept4(door.socket.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!made.is_open()) {
    const bool is_lacking =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (is_lacking) Pause();
    // What is wrong with one connection says nothing about the next.
    return errno == EINTR || errno == ECONNABORTED;
  }
  auto arrival =
      std::make_shared<Arrival>(shared_from_this(), Socket(std::move(made)), door.is_local);
  arrivals_.insert(arrival);
  arrival->Start();
  return true;
}

void Reception::Pause() {
  if (std::exchange(is_pausing_, true)) return;
  MYDIST_LOG(kWarning) << "server " << options_.server
                       << " cannot take a connection: " << std::strerror(errno)
                       << ". Check the limit on open files (ulimit -n).";
  pause_.expires_after(kPause);
  pause_.async_wait([self = shared_from_this()](const asio::error_code&) {
    self->is_pausing_ = false;
    self->WaitAtDoors();
  });
}

std::shared_ptr<void> Reception::TakePlace() {
  if (static_cast<size_t>(places_.use_count()) > options_.most_links) return nullptr;
  return places_;
}

void Reception::Forget(const std::shared_ptr<Arrival>& arrival) {
  arrivals_.erase(arrival);
  WaitAtDoors();
}

void Reception::Welcome(Connection::Parts parts) {
  const Result<std::shared_ptr<Connection>> connection = Connection::Open(io_, std::move(parts));
  if (!connection.ok()) {
    MYDIST_LOG(kWarning) << "server " << options_.server << ": " << connection.status().message();
    return;
  }
  (*connection)->Run([self = shared_from_this(), connection = *connection] {
    return self->Introduce(connection);
  });
}

void Reception::Leave() {
  if (std::exchange(is_over_, true)) return;
  pause_.cancel();
  for (Door& door : doors_) {
    door.watch.reset();
    door.socket.Close();
  }
  for (const auto& arrival : std::exchange(arrivals_, {})) arrival->Close();
  {
    MutexLock lock(mutex_);
    has_ended_ = true;
    changed_.NotifyAll();
  }
  io_.Remove(this);
}

// --- Any thread.

LinkEvents Reception::Introduce(const std::shared_ptr<Connection>& connection) {
  {
    MutexLock lock(mutex_);
    if (is_ending_) {
      connection->Close(Status::Aborted("the server takes no more workers"));
      return {};
    }
    ++introducing_;
  }
  LinkEvents events = on_link_(connection);
  MutexLock lock(mutex_);
  --introducing_;
  changed_.NotifyAll();
  return events;
}

void Reception::End(const Status&) {
  MutexLock lock(mutex_);
  if (std::exchange(is_ending_, true)) return;
  asio::post(strand_, [self = shared_from_this()] { self->Leave(); });
}

void Reception::AwaitEnd() {
  MutexLock lock(mutex_);
  while (!has_ended_ || introducing_ > 0) changed_.Wait(mutex_);
}

}  // namespace mydist::ps
