// The loopback backend: N ranks as N threads of one process, for tests of everything above it.
#include <memory>
#include <utility>

#include "base/status.h"
#include "transport/factory.h"
#include "transport/loopback/hub.h"

namespace mydist {
namespace {

using loopback::Hub;

class LoopbackControlPlane final : public ControlPlane {
 public:
  LoopbackControlPlane(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~LoopbackControlPlane() override { hub_->Leave(rank_); }

  Status Send(int peer, Bytes payload) override {
    return hub_->Send(rank_, peer, std::move(payload));
  }
  Status CheckPeer(int peer) override { return hub_->CheckPeer(peer); }
  Result<std::optional<IncomingMessage>> Receive() override { return hub_->Receive(rank_); }
  void Await(TimePoint deadline) override { hub_->Await(rank_, deadline); }
  void Wake() override { hub_->Wake(rank_); }
  void Attend(bool attended) override { hub_->Attend(rank_, attended); }
  void SetFarewell(const std::string& why) override { hub_->SetFarewell(rank_, why); }
  Status Close(TimePoint) override {
    hub_->Close(rank_);  // Nothing to flush: Send has delivered.
    return Status::Ok();
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    return hub_->Exchange(rank_, sends, receives, watchdog_);
  }
  void SetWatchdog(Watchdog* watchdog) override { watchdog_ = watchdog; }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
  Watchdog* watchdog_ = nullptr;
};

Connection MakeConnection(const std::shared_ptr<Hub>& hub, int rank) {
  Connection connection;
  connection.rank = rank;
  connection.size = hub->size();
  connection.control = std::make_unique<LoopbackControlPlane>(hub, rank);
  connection.transport = std::make_unique<LoopbackTransport>(hub, rank);
  connection.exchange = [hub, rank, round = int64_t{0}](const Bytes& mine) mutable {
    return hub->Gather(rank, round++, mine);
  };
  return connection;
}

}  // namespace

std::vector<Connection> ConnectLoopback(int size) {
  MYDIST_CHECK(size >= 1);
  std::vector<Connection> connections;
  if (size == 1) {
    connections.push_back(ConnectLocal());
    return connections;
  }
  const auto hub = std::make_shared<Hub>(size);
  for (int rank = 0; rank < size; ++rank) connections.push_back(MakeConnection(hub, rank));
  return connections;
}

}  // namespace mydist
