// The one header through which the rest of mydist sees the backends.
// A backend is local, loopback, or a plugin (libmydist_mpi.so, libmydist_gloo.so) opened on demand.
// GPUs come from a plugin of another kind (libmydist_nccl.so).
// A plugin that was not built or cannot be loaded is a reason string, never a crash.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/device/device_link.h"
#include "base/clock.h"
#include "base/export.h"
#include "base/status.h"
#include "config/config.h"
#include "memory/device/device.h"
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
  // MPI: those of all started ranks that form the job, ascending; empty: all of them.
  std::vector<int> members{};
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
  // Blocks until all ranks are connected (at most config->connect_timeout).
  virtual Result<Connection> Connect(const BackendOptions& options) = 0;
};

// A plugin library exports `extern "C" mydist::BackendPlugin* mydist_backend_plugin_v1()`, an
// object that lives as long as the process.
inline constexpr const char* kPluginSymbol = "mydist_backend_plugin_v1";

// Where NCCL is looked for when this process has none, before the system's places.
struct NcclPlaces {
  std::string path;                  // Config::nccl_library: this file or none; empty: search.
  std::vector<std::string> folders;  // Of installed packages; Python knows them.
};

// The GPUs of this process. Thread-safe.
class DevicePlugin {
 public:
  virtual ~DevicePlugin() = default;
  virtual std::string name() const = 0;  // "nccl"
  // How many there are. kInternal with the reason when none can be used: no driver, no GPU. The
  // first call starts the driver, which may take seconds; afterwards GPUs are of no use in a child
  // made by fork.
  virtual Result<int> DeviceCount() = 0;
  // 0 <= index < DeviceCount(). kInvalidArgument for another, kInternal with the driver's words.
  // The same object for all who have it at a time.
  virtual Result<std::shared_ptr<Device>> OpenDevice(int index) = 0;
  // E.g. 23203 for 2.32.3. Opens NCCL the first time, which asks for no GPU; only that call's
  // places count. kInternal with the places that were looked at.
  virtual Result<int> NcclVersion(const NcclPlaces& places) = 0;
  // Links peers over NCCL. All of them call it, and have the same version; it waits for nobody:
  // that is for the first collective. Fails as NcclVersion does.
  virtual Result<DeviceConnection> Connect(const DevicePeers& peers, const NcclPlaces& places) = 0;
  // "NCCL 2.32.3 from <path>, CUDA runtime 13.0, driver 13.0, 2 GPUs"; fails as the two above do.
  virtual Result<std::string> Description(const NcclPlaces& places) = 0;
};

// "2.32.3" for 23203.
MYDIST_EXPORT std::string NcclVersionText(int version);

// A device plugin's library exports `extern "C" mydist::DevicePlugin* mydist_device_plugin_v1()`.
inline constexpr const char* kDevicePluginSymbol = "mydist_device_plugin_v1";

struct BackendReport {
  std::string name;
  bool built = false;
  bool available = false;
  std::string reason;       // Why not built or not available; empty when available.
  std::string description;  // When available.
};

// Opens lib/libmydist_<name>.so beside libmydist.so (once per process; RTLD_NOW | RTLD_LOCAL, never
// closed). kInternal with the reason when it cannot be.
MYDIST_EXPORT Result<BackendPlugin*> LoadPlugin(const std::string& name);
// libmydist_nccl.so, in the same way. Needs neither driver nor NCCL.
MYDIST_EXPORT Result<DevicePlugin*> LoadDevicePlugin();
// The same, loaded at the first call, which fails with its reason: never null, lives for ever.
MYDIST_EXPORT DevicePlugin* DevicesOnDemand();

// One backend: "local", "mpi", "gloo" or "nccl"; loads its plugin to find out. NCCL is looked for
// in `nccl_folders` as well, and by MYDIST_NCCL_LIBRARY.
MYDIST_EXPORT BackendReport ReportBackend(const std::string& name,
                                          const std::vector<std::string>& nccl_folders);
// What --check-build shows: one row per backend.
MYDIST_EXPORT std::vector<BackendReport> ReportBackends(
    const std::vector<std::string>& nccl_folders);
// The version of the NCCL that is found so, e.g. 23203. kInternal with the reason for none. No GPU
// is asked for.
MYDIST_EXPORT Result<int> FindNcclVersion(const std::vector<std::string>& nccl_folders);

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

// For the launcher, which has no C++: a JSON text, valid until the next call. `nccl_folders`:
// separated by ':', may be null.
extern "C" MYDIST_EXPORT const char* mydist_build_report(const char* nccl_folders);
