// The local backend: a job of one rank, which has no peer, and jobs of one host, whose
// ranks talk through the memory they share.
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/thread.h"
#include "transport/factory.h"
#include "transport/local/local_control_plane.h"
#include "transport/shm_transport.h"

namespace mydist {
namespace {

using local::LocalControlPlane;

// OneHostControlPlane: control messages of a job of one host that MPI or Gloo has connected: all go
// through the memory that its ranks share, where they can wake each other. The connection carries
// nothing any more; it is kept because it wants an orderly end.
class OneHostControlPlane final : public ControlPlane {
 public:
  OneHostControlPlane(std::unique_ptr<ControlPlane> connection,
                      std::unique_ptr<LocalControlPlane> local)
      : connection_(std::move(connection)), local_(std::move(local)) {}

  Status Send(int peer, Bytes payload) override { return local_->Send(peer, std::move(payload)); }
  Status CheckPeer(int peer) override { return local_->CheckPeer(peer); }
  Result<std::optional<IncomingMessage>> Receive() override { return local_->Receive(); }
  void Await(TimePoint deadline) override { local_->Await(deadline); }
  void Wake() override { local_->Wake(); }
  void Attend(bool attended) override { local_->Attend(attended); }
  void Nudge(int peer) override { local_->Nudge(peer); }
  void SetFarewell(const std::string& why) override { connection_->SetFarewell(why); }
  Status Close(TimePoint deadline) override {
    const Status local = local_->Close(deadline);
    const Status connection = connection_->Close(deadline);
    return local.ok() ? connection : local;
  }

 private:
  const std::unique_ptr<ControlPlane> connection_;
  const std::unique_ptr<LocalControlPlane> local_;
};

// CompositeControlPlane: control messages of a job of several hosts: between ranks of one host
// through the memory they share, else over MPI or Gloo. Its waiting is that of the local plane; a
// thread of its own, the forwarder, waits for news from other hosts and wakes it.
// A rank of this host that is lost may be reported by both planes.
class CompositeControlPlane final : public ControlPlane {
 public:
  // `cross` reaches all ranks of the job. kInternal when a thread or descriptor is missing.
  static Result<std::unique_ptr<ControlPlane>> Open(std::unique_ptr<ControlPlane> cross,
                                                    std::shared_ptr<shm::ShmPort> port) {
    MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<LocalControlPlane> local,
                            LocalControlPlane::Open(std::move(port)));
    std::unique_ptr<CompositeControlPlane> plane(
        new CompositeControlPlane(std::move(cross), std::move(local)));
    MYDIST_RETURN_IF_ERROR(plane->StartForwarder());
    return std::unique_ptr<ControlPlane>(std::move(plane));
  }
  ~CompositeControlPlane() override { StopForwarder(); }

  Status Send(int peer, Bytes payload) override {
    return local_->Reaches(peer) ? local_->Send(peer, std::move(payload))
                                 : cross_->Send(peer, std::move(payload));
  }
  Status CheckPeer(int peer) override {
    return local_->Reaches(peer) ? local_->CheckPeer(peer) : cross_->CheckPeer(peer);
  }
  Result<std::optional<IncomingMessage>> Receive() override {
    is_cross_next_ = !is_cross_next_;
    for (const bool is_cross : {is_cross_next_, !is_cross_next_}) {
      Result<std::optional<IncomingMessage>> got = is_cross ? ReceiveCross() : local_->Receive();
      if (!got.ok() || got->has_value()) return got;
    }
    return std::optional<IncomingMessage>();
  }
  void Await(TimePoint deadline) override {
    const bool has_news = has_found_.load() && !is_attended_.load();
    local_->Await(has_news ? TimePoint::min() : deadline);
  }
  void Wake() override { local_->Wake(); }
  void Attend(bool attended) override {
    is_attended_.store(attended);
    cross_->Attend(attended);
    local_->Attend(attended);
    if (!attended && has_found_.load()) local_->Wake();
  }
  // The peer is a rank of this host.
  void Nudge(int peer) override { local_->Nudge(peer); }
  // The ranks of this host find it in the arena.
  void SetFarewell(const std::string& why) override { cross_->SetFarewell(why); }
  Status Close(TimePoint deadline) override {
    StopForwarder();
    const Status local = local_->Close(deadline);
    const Status cross = cross_->Close(deadline);
    return cross.ok() ? local : cross;
  }

 private:
  struct Found {
    Status status;  // Of a loss or failure; OK with a message.
    IncomingMessage message{};
  };

  CompositeControlPlane(std::unique_ptr<ControlPlane> cross,
                        std::unique_ptr<LocalControlPlane> local)
      : cross_(std::move(cross)), local_(std::move(local)) {}
  Status StartForwarder() {
    MYDIST_ASSIGN_OR_RETURN(forwarder_, StartThread("mydist-forward", "that waits for other hosts",
                                                    [this] { Forward(); }));
    return Status::Ok();
  }
  void StopForwarder() {
    if (!forwarder_.joinable()) return;
    is_stopping_.store(true);
    cross_->Wake();
    forwarder_.join();
  }
  void Forward() {
    for (bool goes_on = true; goes_on;) {
      cross_->Await(kNever);
      if (is_stopping_.load()) return;
      goes_on = TakeIn();
      // Or else the end of attention looks for it.
      if (has_found_.load() && !is_attended_.load()) local_->Wake();
    }
  }
  // Takes in what has come from other hosts. False when nothing more can come.
  bool TakeIn() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (;;) {
      Result<std::optional<IncomingMessage>> got = cross_->Receive();
      if (got.ok() && !got->has_value()) return true;
      if (got.ok()) {
        found_.push_back({Status::Ok(), **std::move(got)});
      } else {
        found_.push_back({got.status()});
      }
      has_found_.store(true);
      if (!got.ok() && !got.status().is_loss()) return false;
    }
  }
  Result<std::optional<IncomingMessage>> ReceiveCross() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (found_.empty()) return cross_->Receive();
    Found oldest = std::move(found_.front());
    found_.pop_front();
    has_found_.store(!found_.empty());
    MYDIST_RETURN_IF_ERROR(oldest.status);
    return std::optional(std::move(oldest.message));
  }

  const std::unique_ptr<ControlPlane> cross_;
  const std::unique_ptr<LocalControlPlane> local_;
  bool is_cross_next_ = false;  // Whom Receive asks first.
  std::atomic<bool> is_attended_{false};
  std::atomic<bool> is_stopping_{false};
  Mutex mutex_;  // Of taking from cross_, so that messages stay in order.
  // What the forwarder has taken and no rank has received.
  std::deque<Found> found_ MYDIST_GUARDED_BY(mutex_);
  std::atomic<bool> has_found_{false};
  std::thread forwarder_;
};

// The port's own; which the collectives of the engine use as well.
class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(std::shared_ptr<shm::ShmPort> port) : port_(std::move(port)) {}

  int rank() const override { return port_->transport().rank(); }
  int size() const override { return port_->transport().size(); }
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    return port_->transport().Exchange(sends, receives);
  }

 private:
  const std::shared_ptr<shm::ShmPort> port_;
};

}  // namespace

Connection ConnectLocal() {
  Connection connection;
  connection.exchange = [](const Bytes& mine) -> Result<std::vector<Bytes>> {
    return std::vector<Bytes>{mine};
  };
  return connection;
}

int64_t LocalControlBytes(int ranks) { return local::ControlMemory::Bytes(ranks); }

Result<Connection> ConnectLocal(std::shared_ptr<shm::ShmPort> port, BootstrapExchange exchange) {
  Connection connection;
  connection.rank = port->transport().rank();
  connection.size = port->transport().size();
  MYDIST_ASSIGN_OR_RETURN(connection.control, LocalControlPlane::Open(port));
  connection.transport = std::make_unique<LocalTransport>(std::move(port));
  connection.exchange = std::move(exchange);
  return connection;
}

Status ShareWithinHost(Connection& connection, const std::shared_ptr<shm::ShmPort>& port) {
  if (port->arena().size() < connection.size) {
    MYDIST_ASSIGN_OR_RETURN(connection.control,
                            CompositeControlPlane::Open(std::move(connection.control), port));
    return Status::Ok();
  }
  MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<LocalControlPlane> local, LocalControlPlane::Open(port));
  connection.control =
      std::make_unique<OneHostControlPlane>(std::move(connection.control), std::move(local));
  return Status::Ok();
}

}  // namespace mydist
