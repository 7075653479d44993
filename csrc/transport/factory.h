// The one header through which the rest of mydist sees the backends.
// A backend is local, loopback, or a plugin (libmydist_mpi.so, libmydist_gloo.so) opened on demand.
// A plugin that was not built or cannot be loaded is a reason string, never a crash.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/status.h"
#include "config/config.h"
#include "transport/control_plane.h"
#include "transport/transport.h"

namespace mydist {

namespace shm {
class ShmPort;
}  // namespace shm

// Gives every rank's blob, in rank order, to every rank; collective and blocking (an allgather of
// small byte strings). Each call is one round. Served by the launcher's rendezvous, torch's store
// or MPI itself.
using BootstrapExchange = std::function<Result<std::vector<Bytes>>(const Bytes& mine)>;

// One round of it. kInternal when not all of `size` ranks have answered.
MYDIST_EXPORT Result<std::vector<Bytes>> BootstrapRound(const BootstrapExchange& exchange, int size,
                                                        const Bytes& mine);

struct BackendOptions {
  int rank = 0;  // In the job. MPI compares it with what it knows and refuses a difference.
  int size = 1;
  const Config* config = nullptr;  // Not null; outlives Connect only.
  BootstrapExchange exchange;      // Empty for MPI, which brings its own.
  // MPI: those of all started ranks that are connected, in the order of their ranks here; empty:
  // all of them.
  std::vector<int> members{};
  // MPI: tells apart what members may be connecting at the same time; equal on all of them.
  int meeting = 0;
};

// A connected backend: everything the engine needs to talk to the peers. The two planes may share a
// connection; whichever is destroyed last closes it.
struct MYDIST_EXPORT Connection {
  int rank = 0;
  int size = 1;
  std::unique_ptr<ControlPlane> control;  // Null when size is 1.
  std::unique_ptr<Transport> transport;   // Null when size is 1.
  BootstrapExchange exchange;             // Usable until `control` is first used.
};

class BackendPlugin {
 public:
  virtual ~BackendPlugin() = default;
  virtual std::string name() const = 0;  // "mpi", "gloo"
  // Library and version, e.g. "Open MPI 4.1.4", for --check-build and the log.
  virtual std::string Description() const = 0;
  // Starts what all connections of this process share, so that the ranks can agree on this backend
  // before they connect. May block until all started ranks have called it, at most until a
  // time-out.
  virtual Status Prepare(const Config& /*config*/) { return Status::Ok(); }
  // Blocks until all ranks are connected (at most config->connect_timeout).
  virtual Result<Connection> Connect(const BackendOptions& options) = 0;
};

// A plugin library exports `extern "C" mydist::BackendPlugin* mydist_backend_plugin_v1()`, an
// object that lives as long as the process.
inline constexpr const char* kPluginSymbol = "mydist_backend_plugin_v1";

// A job of one rank: no control plane, no transport.
MYDIST_EXPORT Connection ConnectLocal();

// A job whose ranks all share the memory behind `port`, of which ArenaOptions::control_bytes are
// LocalControlBytes. kInternal when threads or descriptors are short.
MYDIST_EXPORT Result<Connection> ConnectLocal(std::shared_ptr<shm::ShmPort> port,
                                              BootstrapExchange exchange);
MYDIST_EXPORT int64_t LocalControlBytes(int ranks);
// From now on control messages inside the host go through the memory behind `port`, of which the
// same is true. kInternal as above.
MYDIST_EXPORT Status ShareWithinHost(Connection& connection,
                                     const std::shared_ptr<shm::ShmPort>& port);

// N ranks as N threads of one process, for tests: element r belongs to rank r.
MYDIST_EXPORT std::vector<Connection> ConnectLoopback(int size);

}  // namespace mydist
