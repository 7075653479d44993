// Lane: a worker's way to one server: what is to be sent, what is on its way, and the connection,
// which it makes anew when it breaks. Any thread; its answers come from the threads of the Io.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
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
#include "memory/shm/arena_heap.h"
#include "ps/frame.h"
#include "ps/operation.h"
#include "ps/port/link.h"

namespace mydist::ps {

// One request to a server, as a part of an operation.
struct Part {
  Frame frame;  // Kind, table, piece and worker.
  // What is sent: memory of the caller's, or `own`.
  std::span<const uint8_t> payload;
  std::vector<uint8_t> own;
  // Takes the payload of the answer, which has `answer_bytes`, and writes the caller's memory.
  std::function<void(std::span<const uint8_t>, const Frame&)> deliver;
  uint64_t answer_bytes = 0;
  int priority = 0;  // Higher ones are sent first; those to one table stay in order.
  // Whether its operation stays here while another such one on the table has no answer: a server
  // keeps what it cannot apply yet.
  bool takes_turns = false;
  std::shared_ptr<Operation> operation;
};

struct LaneOptions {
  ConnectOptions connect;
  // Of payloads and answers on their way, where there is no window.
  uint64_t most_in_flight = uint64_t{16} << 20;
  Duration connect_time = std::chrono::seconds(30);
  Duration reconnect_time = std::chrono::seconds(2);  // After a connection has broken.
  // What the server holds, such as "12 of 48 pieces of table fc", for the error of its loss.
  std::function<std::string()> holdings = nullptr;
};

struct LaneStats {
  int64_t sent_bytes = 0;  // Of payloads.
  int64_t received_bytes = 0;
  int64_t repeated = 0;  // Requests that were sent again.
  Duration waited{};     // From request to answer, of all requests together.
};

class MYDIST_EXPORT Lane : public std::enable_shared_from_this<Lane> {
 public:
  // Connects; blocks. `io` outlives what it does here. The errors of ps::Connect, with the server's
  // name.
  static Result<std::shared_ptr<Lane>> Open(const std::shared_ptr<Io>& io, const Address& address,
                                            const LaneOptions& options);
  ~Lane();

  // Sends them, which are an operation's, as there is room. After the loss of the server their
  // operations fail at once.
  void Submit(std::vector<Part> parts) MYDIST_EXCLUDES(mutex_);
  // With which it was ended; OK: it was not.
  Status failure() MYDIST_EXCLUDES(mutex_);
  // Whether a part of the operation waits here.
  bool Has(const Operation& operation) MYDIST_EXCLUDES(mutex_);
  // Whether nothing waits here for an answer.
  bool IsIdle() MYDIST_EXCLUDES(mutex_);
  // Ends it: all that waits fails with `why`, and all that comes later.
  void Fail(const Status& why) MYDIST_EXCLUDES(mutex_);
  // Says goodbye, after which the server closes the connection; all that waits fails. `error`: why
  // the worker leaves, if not in order; those that count on its pushes are to have one, too.
  void Close(const Status& error) MYDIST_EXCLUDES(mutex_);
  // After Close: until the server has closed the connection, or the deadline. A process that ends
  // before may take its goodbye along: TCP drops it where answers have not been read.
  void AwaitClosed(TimePoint deadline) MYDIST_EXCLUDES(mutex_);

  // "server 1 (host a, pid 7)".
  const std::string& server_text() const { return server_text_; }
  const Introduction& server() const { return server_; }
  // How it is connected, for explain().
  std::string Text() MYDIST_EXCLUDES(mutex_);
  LaneStats stats() MYDIST_EXCLUDES(mutex_);

 private:
  // The turn of a table: how much of its current operation is not answered, and the operations that
  // stay here meanwhile.
  struct Turn {
    size_t unanswered = 0;
    std::deque<std::vector<Part>> held;
  };
  struct Pending {
    Part part;
    std::optional<shm::Extent> region;  // Of the window.
    uint64_t credit = 0;
    TimePoint sent_at{};
  };

  Lane(const std::shared_ptr<Io>& io, const Address& address, const LaneOptions& options)
      : io_(io), address_(address), options_(options) {}
  // A connection and its number.
  struct Made {
    std::shared_ptr<Link> link;
    uint64_t number = 0;
  };
  // A request that may leave over the connection of this number.
  struct Ticket {
    uint64_t sequence = 0;
    uint64_t connection = 0;
  };

  Result<Made> ConnectOnce(TimePoint deadline) MYDIST_EXCLUDES(mutex_);
  // False: it has been closed meanwhile.
  bool Adopt(const Made& made) MYDIST_REQUIRES(mutex_);
  // Sends what there is room for. One thread at a time: the order of a piece's requests counts.
  void Pump() MYDIST_EXCLUDES(mutex_);
  // The next part that may leave, with its room and number, as pending; nothing: none now.
  std::optional<Ticket> TakeNext() MYDIST_REQUIRES(mutex_);
  void Enqueue(std::vector<Part> parts) MYDIST_REQUIRES(mutex_);
  // A part that takes turns has been answered.
  void GoOn(uint32_t table) MYDIST_REQUIRES(mutex_);
  // All that is not answered, sent or not.
  std::vector<std::shared_ptr<Operation>> Operations() MYDIST_REQUIRES(mutex_);
  bool MakeRoom(Pending& pending) MYDIST_REQUIRES(mutex_);
  void GiveRoom(Pending& pending) MYDIST_REQUIRES(mutex_);
  void SendPending(const Ticket& ticket) MYDIST_EXCLUDES(mutex_);
  void OnFrame(const Frame& frame, const Payload& payload) MYDIST_EXCLUDES(mutex_);
  void OnClosed(uint64_t connection, const Status& why) MYDIST_EXCLUDES(mutex_);
  Status StartReconnect(uint64_t connection, const Status& why) MYDIST_EXCLUDES(mutex_);
  void Reconnect() MYDIST_EXCLUDES(mutex_);
  // What becomes of all requests when no connection could be made because of `why`.
  Status LossOf(const Status& why) const;
  static void SayGoodbye(Link& link, const Status& error);

  // Weak: a thread of it may be the last user of this lane, and cannot end itself.
  const std::weak_ptr<Io> io_;
  const Address address_;
  const LaneOptions options_;
  Introduction server_;
  std::string server_text_;

  Mutex mutex_;
  CondVar closed_;
  std::shared_ptr<Link> link_ MYDIST_GUARDED_BY(mutex_);  // Null: broken.
  uint64_t connection_ MYDIST_GUARDED_BY(mutex_) = 0;     // Its number.
  uint64_t last_made_ MYDIST_GUARDED_BY(mutex_) = 0;      // Numbers of connections.
  uint64_t last_closed_ MYDIST_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<shm::FreeExtents> window_ MYDIST_GUARDED_BY(mutex_);
  uint64_t in_flight_ MYDIST_GUARDED_BY(mutex_) = 0;
  std::deque<Part> queue_ MYDIST_GUARDED_BY(mutex_);
  std::map<uint32_t, Turn> turns_ MYDIST_GUARDED_BY(mutex_);  // By table.
  std::map<uint64_t, std::shared_ptr<Pending>> pending_ MYDIST_GUARDED_BY(mutex_);
  std::deque<uint64_t> again_ MYDIST_GUARDED_BY(mutex_);  // Pending ones to send once more.
  uint64_t last_sequence_ MYDIST_GUARDED_BY(mutex_) = 0;
  bool is_pumping_ MYDIST_GUARDED_BY(mutex_) = false;
  bool must_pump_ MYDIST_GUARDED_BY(mutex_) = false;
  bool is_closing_ MYDIST_GUARDED_BY(mutex_) = false;
  Status error_ MYDIST_GUARDED_BY(mutex_);  // See Close.
  Status failure_ MYDIST_GUARDED_BY(mutex_);
  LaneStats stats_ MYDIST_GUARDED_BY(mutex_);
  std::thread reconnect_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::ps
