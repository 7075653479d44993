// The local backend: a job of one rank, which has nobody to talk to, and jobs of one host, whose
// ranks talk through the memory they share.
#include <algorithm>
#include <utility>

#include "transport/factory.h"
#include "transport/local/composite_control_plane.h"
#include "transport/local/control_ring.h"
#include "transport/local/local.h"
#include "transport/local/local_control_plane.h"
#include "transport/shm_transport.h"

namespace mydist {
namespace {

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
  MYDIST_ASSIGN_OR_RETURN(connection.control, local::LocalControlPlane::Open(port));
  connection.transport = std::make_unique<LocalTransport>(std::move(port));
  connection.exchange = std::move(exchange);
  return connection;
}

Status ShareWithinHost(Connection& connection, const std::shared_ptr<shm::ShmPort>& port) {
  if (port->arena().size() < connection.size) {
    MYDIST_ASSIGN_OR_RETURN(connection.control, local::CompositeControlPlane::Open(
                                                    std::move(connection.control), port));
    return Status::Ok();
  }
  MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<local::LocalControlPlane> local,
                          local::LocalControlPlane::Open(port));
  connection.control =
      std::make_unique<local::OneHostControlPlane>(std::move(connection.control), std::move(local));
  return Status::Ok();
}

}  // namespace mydist
