// LanePosts: messages from one member of a lane to another, beside the lane's queue. A send never
// waits for its receiver. A receive takes the oldest message of its sender with its tag, so tags
// may be received in another order than they were sent in. Any thread. A thread of its own
// receives; it starts with the first call. A callback may wait for another message: the thread that
// runs it hands the receiving over, and another thread starts when a receive needs one.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/control_plane.h"

namespace mydist {

class MYDIST_EXPORT LanePosts {
 public:
  static constexpr int kAnySource = -1;

  // What follows a receive, without a lock; it may take long. Empty: nothing.
  using Follow = std::function<void()>;
  // Called without a lock when a message has come, or will not come any more. The payload is empty
  // then, and the source is that of the message, else the one asked for. It does not wait: what
  // might is in the result.
  using Take = std::function<Follow(const Status& status, int source, const Bytes& payload)>;
  // Names a receive, for Cancel.
  using Ticket = uint64_t;

  // Called when the plane is needed first. It outlives this object.
  using OpenPlane = std::function<Result<ControlPlane*>()>;
  explicit LanePosts(OpenPlane open_plane) : open_plane_(std::move(open_plane)) {}
  ~LanePosts() { Stop(); }
  LanePosts(const LanePosts&) = delete;
  LanePosts& operator=(const LanePosts&) = delete;

  // kPeerLost when the peer is known to have left.
  Status Send(int peer, int32_t tag, std::span<const uint8_t> payload) MYDIST_EXCLUDES(mutex_);
  // `source`: a member, or kAnySource.
  Ticket Receive(int source, int32_t tag, Take take) MYDIST_EXCLUDES(mutex_);
  // Ends a receive that is still open with this error. False when it has ended before.
  bool Cancel(Ticket ticket, const Status& why) MYDIST_EXCLUDES(mutex_);
  // No message is received or sent any more, so the plane may be closed. What comes later ends with
  // this error; what is open does with Abort. The first call counts.
  void Refuse(const Status& why) MYDIST_EXCLUDES(mutex_);
  // Ends all that is open or comes later with this error. The first call counts.
  void Abort(const Status& why) MYDIST_EXCLUDES(mutex_);
  // Waits for the threads; the plane is not used from then on. Not from a callback.
  void Stop() MYDIST_EXCLUDES(mutex_);

 private:
  struct Message {
    int source;
    int32_t tag;
    Bytes payload;
  };
  struct Open {
    Ticket ticket;
    int source;
    int32_t tag;
    Take take;
  };

  static bool Fits(const Open& open, const Message& message) {
    return (open.source == kAnySource || open.source == message.source) && open.tag == message.tag;
  }

  Status Start() MYDIST_REQUIRES(mutex_);
  // A thread that may receive, unless one does or will.
  Status CallThread() MYDIST_REQUIRES(mutex_);
  void Run() MYDIST_EXCLUDES(mutex_);
  // Takes in what arrives, until something follows a receive, or nothing more can arrive. By one
  // thread at a time.
  Follow Listen() MYDIST_EXCLUDES(mutex_);
  // The next message that has arrived complete; nothing: none has.
  Result<std::optional<Message>> Next() MYDIST_REQUIRES(mutex_);
  // One piece of a message; the message once it is complete.
  Result<std::optional<Message>> Join(const IncomingMessage& piece) MYDIST_REQUIRES(mutex_);
  Follow Deliver(Message message) MYDIST_EXCLUDES(mutex_);

  const OpenPlane open_plane_;
  std::atomic<bool> is_closing_{false};

  Mutex mutex_;
  // Threads that do not receive wait for the one, and who needs that none does for the other.
  CondVar wanted_;
  CondVar quiet_;
  ControlPlane* plane_ MYDIST_GUARDED_BY(mutex_) = nullptr;  // Await needs no lock.
  Status error_ MYDIST_GUARDED_BY(mutex_);
  Ticket last_ticket_ MYDIST_GUARDED_BY(mutex_) = 0;
  std::map<int, Message> parts_
      MYDIST_GUARDED_BY(mutex_);  // By source: a message that is incomplete.
  std::list<Message> waiting_ MYDIST_GUARDED_BY(mutex_);  // That no receive has asked for.
  std::list<Open> open_ MYDIST_GUARDED_BY(mutex_);
  bool is_listening_ MYDIST_GUARDED_BY(mutex_) = false;  // One of the threads is in Listen.
  // More than one when callbacks keep the others.
  std::vector<std::thread> threads_ MYDIST_GUARDED_BY(mutex_);
  int idle_threads_ MYDIST_GUARDED_BY(mutex_) = 0;
};

}  // namespace mydist
