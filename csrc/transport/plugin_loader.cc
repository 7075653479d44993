// LoadPlugin: finds, opens and remembers the plugin libraries.
#include <dlfcn.h>

#include <map>
#include <string>

#include "base/log.h"
#include "base/mutex.h"
#include "mydist/build_config.h"
#include "transport/factory.h"

namespace mydist {
namespace {

// The folder libmydist.so itself lies in: plugins are installed beside it, wherever that is.
std::string LibraryFolder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&LibraryFolder), &info) == 0 || info.dli_fname == nullptr) {
    return ".";
  }
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Why this build has no such plugin; empty when it has one.
std::string WhyNotBuilt(const std::string& name) {
  if (name == "mpi") return build_config::kMpiBuilt ? "" : build_config::kMpiReason;
  if (name == "gloo") return build_config::kGlooBuilt ? "" : build_config::kGlooReason;
  if (name == "nccl") return build_config::kCudaBuilt ? "" : build_config::kCudaReason;
  return "there is no such backend, expected 'mpi' or 'gloo'";
}

std::string TextOf(BackendPlugin* plugin) { return plugin->Description(); }
// Describing it any closer would start the driver.
std::string TextOf(DevicePlugin*) { return "GPUs"; }

// `Plugin` is what the library's function `symbol` gives.
template <typename Plugin>
Result<Plugin*> Open(const std::string& name, const char* symbol) {
  if (const std::string reason = WhyNotBuilt(name); !reason.empty()) {
    return Status::Internal("backend '" + name + "' was not built: " + reason);
  }
  const std::string path = LibraryFolder() + "/libmydist_" + name + ".so";
  // RTLD_LOCAL keeps the plugin's MPI or Gloo out of everybody else's sight, and RTLD_NOW makes a
  // missing symbol an error here and not a crash later. No RTLD_DEEPBIND: it would bind the plugin
  // past a preloaded allocator or sanitizer, so memory would be freed by the wrong one.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    return Status::Internal("backend '" + name + "' cannot be loaded: " +
                            (error != nullptr ? error : "unknown dlopen error in " + path));
  }
  auto entry = reinterpret_cast<Plugin* (*)()>(dlsym(library, symbol));
  if (entry == nullptr) {
    return Status::VersionMismatch("backend '" + name + "': " + path + " does not export " +
                                   symbol + ". It belongs to another version of mydist (this is " +
                                   build_config::kVersion + "); install mydist again.");
  }
  Plugin* plugin = entry();
  MYDIST_LOG(kDebug) << "loaded backend " << name << " (" << TextOf(plugin) << ") from " << path;
  return plugin;
}

struct PluginTable {
  Mutex mutex;
  std::map<std::string, Result<BackendPlugin*>> opened MYDIST_GUARDED_BY(mutex);
};

// Never destroyed: plugins stay open until the process ends, whatever the order of exit handlers.
PluginTable& Table() {
  static auto* table = new PluginTable;
  return *table;
}

// A job without tensors on GPUs never loads the plugin.
class OnDemandPlugin final : public DevicePlugin {
 public:
  std::string name() const override { return "nccl"; }
  Result<int> DeviceCount() override {
    MYDIST_ASSIGN_OR_RETURN(DevicePlugin* const plugin, LoadDevicePlugin());
    return plugin->DeviceCount();
  }
  Result<std::shared_ptr<Device>> OpenDevice(int index) override {
    MYDIST_ASSIGN_OR_RETURN(DevicePlugin* const plugin, LoadDevicePlugin());
    return plugin->OpenDevice(index);
  }
  Result<int> NcclVersion(const NcclPlaces& places) override {
    MYDIST_ASSIGN_OR_RETURN(DevicePlugin* const plugin, LoadDevicePlugin());
    return plugin->NcclVersion(places);
  }
  Result<DeviceConnection> Connect(const DevicePeers& peers, const NcclPlaces& places) override {
    MYDIST_ASSIGN_OR_RETURN(DevicePlugin* const plugin, LoadDevicePlugin());
    return plugin->Connect(peers, places);
  }
  Result<std::string> Description(const NcclPlaces& places) override {
    MYDIST_ASSIGN_OR_RETURN(DevicePlugin* const plugin, LoadDevicePlugin());
    return plugin->Description(places);
  }
};

}  // namespace

Result<DevicePlugin*> LoadDevicePlugin() {
  // Never destroyed, as above.
  static const auto* plugin = new Result(Open<DevicePlugin>("nccl", kDevicePluginSymbol));
  return *plugin;
}

DevicePlugin* DevicesOnDemand() {
  static auto* plugin = new OnDemandPlugin;
  return plugin;
}

Result<BackendPlugin*> LoadPlugin(const std::string& name) {
  if (name == "nccl") {
    return Status::Internal(
        "backend 'nccl' moves tensors between GPUs and connects no ranks, expected 'mpi' or "
        "'gloo'");
  }
  PluginTable& table = Table();
  MutexLock lock(table.mutex);
  auto found = table.opened.find(name);
  if (found == table.opened.end())
    found = table.opened.emplace(name, Open<BackendPlugin>(name, kPluginSymbol)).first;
  return found->second;
}

}  // namespace mydist
