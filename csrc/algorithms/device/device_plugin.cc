#include "algorithms/device/device_plugin.h"

#include "base/log.h"
#include "mydist/build_config.h"
#include "transport/registry.h"

namespace mydist {
namespace {

Result<DevicePlugin*> Open() {
  MYDIST_ASSIGN_OR_RETURN(
      void* const function,
      PluginFunction("nccl", build_config::kCudaBuilt ? "" : build_config::kCudaReason,
                     kDevicePluginSymbol));
  // Describing it any closer would start the driver.
  MYDIST_LOG(kDebug) << "loaded backend nccl";
  return reinterpret_cast<DevicePlugin* (*)()>(function)();
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
  // Never destroyed: it stays open until the process ends, whatever the order of exit handlers.
  static const auto* plugin = new Result(Open());
  return *plugin;
}

DevicePlugin* DevicesOnDemand() {
  static auto* plugin = new OnDemandPlugin;
  return plugin;
}

std::string NcclVersionText(int version) {
  // Before 2.9 it was 2804 for 2.8.4.
  const int major_unit = version < 10000 ? 1000 : 10000;
  return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / 100) +
         "." + std::to_string(version % 100);
}

}  // namespace mydist
