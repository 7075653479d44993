// Connection: a Link once both sides know each other. It lives until it is closed: its reading
// holds it. One thread of the Io reads at a time and calls the events; any thread sends.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "ps/port/frame_reader.h"
#include "ps/port/io_threads.h"
#include "ps/port/link.h"
#include "ps/port/socket.h"
#include "ps/port/watch.h"
#include "ps/port/window.h"

namespace mydist::ps {

class Connection final : public Link,
                         public IoMember,
                         public std::enable_shared_from_this<Connection> {
 public:
  struct Parts {
    Socket socket;
    std::shared_ptr<Window> window;  // May be none.
    Introduction peer;
    std::string text;
    std::shared_ptr<void> place;  // Let go at the end; may be none.
  };
  // kInternal when the system refuses. Run must follow.
  static Result<std::shared_ptr<Connection>> Open(IoThreads& io, Parts parts);
  Connection(IoThreads& io, Parts parts);

  // Calls `make_events` and then the events, from a thread of the Io on.
  void Run(std::function<LinkEvents()> make_events);

  void Send(const Frame& frame, std::span<const uint8_t> payload,
            std::function<void()> sent) override;
  std::span<uint8_t> window() const override;
  const Introduction& peer() const override { return parts_.peer; }
  std::string Text() const override { return parts_.text; }
  void Close(const Status& why) override;
  void End(const Status& why) override { Close(why); }

 private:
  struct Outgoing {
    FrameBytes header;
    std::span<const uint8_t> payload;
    std::function<void()> sent;
    size_t done = 0;  // Of header and payload.

    size_t size() const { return header.size() + payload.size(); }
  };
  using Calls = std::vector<std::function<void()>>;

  void Read();
  Status StartWatch();
  std::optional<size_t> ReadOne();
  void WaitForBytes();
  void EndReading(const Status& found);
  void EndAll();
  Status Describe(const Status& found) const;

  void WriteAgain();
  void Write(Calls& sent) MYDIST_REQUIRES(mutex_);
  bool WriteSome(Calls& sent) MYDIST_REQUIRES(mutex_);
  void StopWriting(int error, Calls& sent) MYDIST_REQUIRES(mutex_);
  void DropOutgoing(Calls& sent) MYDIST_REQUIRES(mutex_);
  void Announce(const Calls& sent) MYDIST_REQUIRES(mutex_);
  void CallAll(const Calls& sent) MYDIST_EXCLUDES(mutex_);

  IoThreads& io_;
  Parts parts_;  // The socket is closed with mutex_ held.
  const int socket_;

  // Of the thread that reads.
  FrameReader reader_;
  LinkEvents events_;

  std::atomic<bool> is_closing_{false};  // Set with mutex_ held.
  Mutex mutex_;
  // Waits for the socket; nothing once the connection has ended.
  std::optional<Watch> watch_ MYDIST_GUARDED_BY(mutex_);
  std::deque<Outgoing> outgoing_ MYDIST_GUARDED_BY(mutex_);
  bool is_waiting_for_room_ MYDIST_GUARDED_BY(mutex_) = false;
  int write_error_ MYDIST_GUARDED_BY(mutex_) = 0;  // errno; nothing can be sent any more.
  // The end waits for what is being called of `sent`, so that on_closed is the last.
  size_t announced_ MYDIST_GUARDED_BY(mutex_) = 0;
  bool has_read_all_ MYDIST_GUARDED_BY(mutex_) = false;
  Status why_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::ps
