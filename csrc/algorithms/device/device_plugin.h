// DevicePlugin: how the rest of mydist sees GPUs and NCCL. They are in a library of their own
// (libmydist_nccl.so), which is opened when a tensor on a GPU comes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "algorithms/collectives.h"
#include "base/clock.h"
#include "base/export.h"
#include "base/status.h"
#include "memory/device/device.h"
#include "memory/device/device_memory.h"

namespace mydist {

// DeviceLink: what holds the ranks together whose collectives go on, on their devices, after the
// calls have returned (reduce): it notices what fails there, and ends it.
// Made by DevicePlugin::Connect, owned by the engine, outlives its collectives. Check and Abort:
// any thread at any time; Close: the thread that drives the engine. The first failure is final:
// every later call, of the collectives too, returns it.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;

  // Whether anything has failed since: also of work that is on a stream already. Never waits.
  virtual Status Check() = 0;

  // Ends what is under way here, on the streams too, and makes all calls, present and future,
  // return `why`, not OK. Only the first failure counts. Blocks until the device has been let go
  // of, but not on other ranks: they abort as well, or they wait in vain. Links with work on one
  // stream have to be aborted at the same time: that of one may lie behind that of another.
  virtual void Abort(const Status& why) = 0;

  // Waits for what is on the streams and for the other ranks, which close as well, and ends the
  // link. Later calls return kAborted. kTimeout after `deadline`, and what `watch` says, which is
  // asked meanwhile; after a failure the link still has to be aborted.
  virtual Status Close(TimePoint deadline, const WaitWatch& watch) = 0;
};

// Ranks that are to be linked, each on one device.
struct DevicePeers {
  StreamSeat seat;  // Where this rank's work goes.
  int rank = 0;     // Of this rank among them.
  int size = 1;
  std::string name;  // For messages, e.g. "process set 2".
  // Spans the same ranks on host memory, where they tell each other what a link needs. Not null;
  // outlives the link.
  Collectives* exchange = nullptr;
};

struct DeviceConnection {
  std::shared_ptr<DeviceLink> link;
  std::unique_ptr<Collectives> collectives;  // On the seat's stream, over the link.
};

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
  // The same object for all owners at a time.
  virtual Result<std::shared_ptr<Device>> OpenDevice(int index) = 0;
  // E.g. 23203 for 2.32.3. Opens NCCL the first time, which asks for no GPU; only that call's
  // places count. kInternal with the places that were looked at.
  virtual Result<int> NcclVersion(const NcclPlaces& places) = 0;
  // Links peers over NCCL. All peers call it with the same version of NCCL. It does not wait for
  // the other peers; the first collective does. Fails as NcclVersion does.
  virtual Result<DeviceConnection> Connect(const DevicePeers& peers, const NcclPlaces& places) = 0;
  // "NCCL 2.32.3 from <path>, CUDA runtime 13.0, driver 13.0, 2 GPUs"; fails as the two above do.
  virtual Result<std::string> Description(const NcclPlaces& places) = 0;
};

// "2.32.3" for 23203.
MYDIST_EXPORT std::string NcclVersionText(int version);

// A device plugin's library exports `extern "C" mydist::DevicePlugin* mydist_device_plugin_v1()`.
inline constexpr const char* kDevicePluginSymbol = "mydist_device_plugin_v1";

// Opens libmydist_nccl.so, once per process. Needs neither driver nor NCCL. kInternal with the
// reason when it cannot be.
MYDIST_EXPORT Result<DevicePlugin*> LoadDevicePlugin();
// The same, loaded at the first call, which fails with its reason: never null, lives for ever.
MYDIST_EXPORT DevicePlugin* DevicesOnDemand();

}  // namespace mydist
