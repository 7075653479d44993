// Both ends of a connection in one process, and what each of them has been told.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "ps/port/link.h"

namespace mydist::ps::testing {

inline constexpr std::chrono::seconds kPatience{60};  // For what takes microseconds on a free core.

// What one end of a link was told. Any thread.
class Inbox {
 public:
  struct Letter {
    Frame frame;
    std::vector<uint8_t> payload;
    bool is_borrowed = false;
  };

  // `also` is called with each frame, after it has been put down.
  LinkEvents Events(std::function<void(const Frame&, const Payload&)> also = nullptr) {
    return {[this, also](const Frame& frame, Payload payload) {
              Put(frame, payload);
              if (also != nullptr) also(frame, payload);
            },
            [this](const Status& why) { PutEnd(why); }};
  }

  // The oldest that has not been taken; nothing when the link ends first or after kPatience.
  std::optional<Letter> Take() {
    MutexLock lock(mutex_);
    const TimePoint deadline = Now() + kPatience;
    while (letters_.empty() && ends_.empty() && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (letters_.empty()) return std::nullopt;
    Letter letter = std::move(letters_.front());
    letters_.pop_front();
    return letter;
  }

  // Waits for the end; nothing after kPatience.
  std::optional<Status> End() {
    MutexLock lock(mutex_);
    const TimePoint deadline = Now() + kPatience;
    while (ends_.empty() && changed_.WaitUntil(mutex_, deadline)) {
    }
    return ends_.empty() ? std::nullopt : std::optional(ends_.front());
  }

  // Events that came in the wrong order: after the end, or a second end.
  int mistakes() {
    MutexLock lock(mutex_);
    return mistakes_;
  }

 private:
  void Put(const Frame& frame, const Payload& payload) {
    const auto bytes = payload.bytes();
    MutexLock lock(mutex_);
    if (!ends_.empty()) ++mistakes_;
    letters_.push_back({frame, {bytes.begin(), bytes.end()}, payload.is_borrowed()});
    changed_.NotifyAll();
  }
  void PutEnd(const Status& why) {
    MutexLock lock(mutex_);
    if (!ends_.empty()) ++mistakes_;
    ends_.push_back(why);
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<Letter> letters_ MYDIST_GUARDED_BY(mutex_);
  std::vector<Status> ends_ MYDIST_GUARDED_BY(mutex_);
  int mistakes_ MYDIST_GUARDED_BY(mutex_) = 0;
};

// Something that another thread leaves.
template <typename T>
class Slot {
 public:
  void Put(T value) {
    MutexLock lock(mutex_);
    value_ = std::move(value);
    changed_.NotifyAll();
  }
  std::optional<T> Await() {
    MutexLock lock(mutex_);
    const TimePoint deadline = Now() + kPatience;
    while (!value_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    return value_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<T> value_ MYDIST_GUARDED_BY(mutex_);
};

enum class Way { kTcp, kUnix, kWindow };

inline std::string WayName(Way way) {
  return way == Way::kTcp ? "Tcp" : way == Way::kUnix ? "Unix" : "Window";
}

inline JobKey TestKey(uint8_t byte = 7) {
  JobKey key;
  key.fill(byte);
  return key;
}

inline ConnectOptions OptionsFor(Way way) {
  return {.key = TestKey(),
          .self = {.number = 3, .pid = 77, .host = "worker-host", .session = 9},
          .shares_memory = way != Way::kTcp,
          .window_bytes = way == Way::kWindow ? uint64_t{16} << 20 : 0,
          .deadline = Now() + kPatience};
}

inline ListenOptions ServerOptions() {
  return {.server = 1, .host_name = "server-host", .key = TestKey()};
}

// A server that listens, and one worker that is connected to it.
class LinkPair {
 public:
  using Also = std::function<void(const Frame&, const Payload&)>;

  explicit LinkPair(Way way, Also on_server = nullptr, Also on_worker = nullptr, int threads = 2) {
    server_io = Io::Start(threads, "server").value();
    worker_io = Io::Start(1, "worker").value();
    listener =
        Listener::Open(server_io, ServerOptions(), [this, on_server](std::shared_ptr<Link> link) {
          server_link.Put(std::move(link));
          return server_inbox.Events(on_server);
        }).value();
    worker =
        Connect(worker_io, listener->address(), OptionsFor(way), worker_inbox.Events(on_worker))
            .value();
    server = server_link.Await().value();
  }
  ~LinkPair() {
    worker_io.reset();
    listener.reset();
    server_io.reset();
  }

  Inbox server_inbox;
  Inbox worker_inbox;
  Slot<std::shared_ptr<Link>> server_link;
  std::shared_ptr<Io> server_io;
  std::shared_ptr<Io> worker_io;
  std::unique_ptr<Listener> listener;
  std::shared_ptr<Link> worker;
  std::shared_ptr<Link> server;
};

inline std::vector<uint8_t> Bytes(size_t count, uint8_t seed) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(seed + i * 31 + (i >> 8));
  return bytes;
}

}  // namespace mydist::ps::testing
