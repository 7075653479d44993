// Reception: where strangers become workers of a server. It takes connections and goes through the
// handshake of greeting.h with each. A Connection is made of one that has proved the key. All of
// that happens on one strand of the Io; what the server does with a new link does not.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/strand.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "ps/port/connection.h"
#include "ps/port/greeting.h"
#include "ps/port/io_threads.h"
#include "ps/port/link.h"
#include "ps/port/socket.h"
#include "ps/port/watch.h"

namespace mydist::ps {

using Strand = asio::strand<asio::io_context::executor_type>;
using OnLink = std::function<LinkEvents(std::shared_ptr<Link>)>;

class Arrival;

class Reception final : public IoMember, public std::enable_shared_from_this<Reception> {
 public:
  Reception(IoThreads& io, const ListenOptions& options, OnLink on_link);

  // Before Start.
  Status Listen(Address& address);
  void Start();
  void End(const Status& why) override;
  // Returns once it has ended and calls on_link no more.
  void AwaitEnd();

  // For an Arrival, on the strand.
  IoThreads& io() { return io_; }
  const Strand& strand() const { return strand_; }
  const ListenOptions& options() const { return options_; }
  // A place for one more link; nothing when all are taken.
  std::shared_ptr<void> TakePlace();
  void Welcome(Connection::Parts parts);
  void Forget(const std::shared_ptr<Arrival>& arrival);

 private:
  // A socket that listens.
  struct Door {
    Socket socket;
    bool is_local = false;
    std::unique_ptr<Watch> watch;  // Ends before the socket is closed.
    bool is_waiting = false;
  };

  void WaitAtDoors();
  void WaitAt(size_t door);
  void Take(size_t door);
  bool TakeOne(Door& door);
  void Pause();
  void Leave();
  LinkEvents Introduce(const std::shared_ptr<Connection>& connection);

  IoThreads& io_;
  const ListenOptions options_;
  const OnLink on_link_;

  // Of the strand.
  Strand strand_;
  std::vector<Door> doors_;
  std::set<std::shared_ptr<Arrival>> arrivals_;
  asio::steady_timer pause_;
  bool is_pausing_ = false;
  bool is_over_ = false;
  std::shared_ptr<char> places_ = std::make_shared<char>();  // One owner more for each link.

  Mutex mutex_;
  CondVar changed_;
  bool is_ending_ MYDIST_GUARDED_BY(mutex_) = false;
  bool has_ended_ MYDIST_GUARDED_BY(mutex_) = false;
  int introducing_ MYDIST_GUARDED_BY(mutex_) = 0;  // Calls of on_link that are on.
};

}  // namespace mydist::ps
