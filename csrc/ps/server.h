// Server: one parameter server: its store, the threads that serve it, and the workers it knows.
// A program of its own, or threads in the first ranks of a job. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"
#include "ps/port/link.h"
#include "ps/store.h"

namespace mydist::ps {

struct ServerOptions {
  ListenOptions listen;
  int threads = 0;  // That serve workers; 0: half of the cores that this process may use.
  // How long a worker that may still live has to connect again before it counts as lost.
  Duration reconnect_time = std::chrono::seconds(2);
};

class MYDIST_EXPORT Server {
 public:
  // kInternal when it cannot listen or start a thread.
  static Result<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // Closes all connections.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const Address& address() const { return listener_->address(); }

 private:
  struct Worker;

  explicit Server(const ServerOptions& options) : options_(options) {}
  LinkEvents Accept(std::shared_ptr<Link> link) MYDIST_EXCLUDES(mutex_);
  void OnClosed(const std::shared_ptr<Worker>& worker, int64_t connection, const Status& why)
      MYDIST_EXCLUDES(mutex_);
  // Waits until the worker has connected again, its process has ended, or the time is over.
  void AwaitReturn(const std::shared_ptr<Worker>& worker, int64_t connection, TimePoint end)
      MYDIST_EXCLUDES(mutex_);
  // The worker is counted on no more, because of `why`.
  void Lose(const std::shared_ptr<Worker>& worker, int64_t connection, const Status& why)
      MYDIST_EXCLUDES(mutex_);

  const ServerOptions options_;
  Store store_;
  Mutex mutex_;
  // By rank and session. One that has said goodbye is gone; one that is lost stays, so that it
  // learns that it is.
  std::map<std::pair<int, uint64_t>, std::shared_ptr<Worker>> workers_ MYDIST_GUARDED_BY(mutex_);
  bool is_closing_ MYDIST_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Io> io_;
  Io* threads_ = nullptr;  // The same, for its own threads: io_ is empty while it ends.
  std::unique_ptr<Listener> listener_;
};

}  // namespace mydist::ps
