// The plugin for GPUs: CUDA's runtime, linked statically, and an NCCL opened at run time. What it
// needs from the machine is asked for call by call, so that it loads on any.
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "algorithms/device/device_plugin.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/plugin_version.h"
#include "gpu/cuda_device.h"
#include "gpu/cuda_driver.h"
#include "gpu/nccl_collectives.h"
#include "gpu/nccl_library.h"

namespace mydist {
namespace {

class NcclPlugin final : public DevicePlugin {
 public:
  std::string name() const override { return "nccl"; }

  Result<int> DeviceCount() override { return cuda::CountDevices(); }

  Result<std::shared_ptr<Device>> OpenDevice(int index) override {
    // Also while it is opened, so that it is opened once.
    MutexLock lock(devices_mutex_);
    std::weak_ptr<Device>& known = devices_[index];
    if (std::shared_ptr<Device> device = known.lock()) return device;
    MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaDevice> opened,
                            cuda::CudaDevice::Open(index));
    std::shared_ptr<Device> device = std::move(opened);
    known = device;
    return device;
  }

  Result<int> NcclVersion(const NcclPlaces& places) override {
    MYDIST_ASSIGN_OR_RETURN(const nccl::NcclLibrary* const library, Library(places));
    return library->api.version;
  }

  Result<DeviceConnection> Connect(const DevicePeers& peers, const NcclPlaces& places) override {
    MYDIST_ASSIGN_OR_RETURN(const nccl::NcclLibrary* const library, Library(places));
    return ConnectNccl(&library->api, peers);
  }

  Result<std::string> Description(const NcclPlaces& places) override {
    MYDIST_ASSIGN_OR_RETURN(const int count, DeviceCount());
    int driver_version = 0;
    MYDIST_RETURN_IF_ERROR(
        cuda::CudaStatus(cudaDriverGetVersion(&driver_version), "cudaDriverGetVersion"));
    MYDIST_ASSIGN_OR_RETURN(const nccl::NcclLibrary* const library, Library(places));
    return "NCCL " + NcclVersionText(library->api.version) + " from " + library->path +
           ", CUDA runtime " + cuda::VersionText(CUDART_VERSION) + ", driver " +
           cuda::VersionText(driver_version) + ", " + std::to_string(count) +
           (count == 1 ? " GPU" : " GPUs");
  }

 private:
  // A failure is not kept: torch may bring an NCCL later.
  Result<const nccl::NcclLibrary*> Library(const NcclPlaces& places) {
    MutexLock lock(mutex_);
    if (!library_) {
      MYDIST_ASSIGN_OR_RETURN(library_, nccl::NcclLibrary::Open(places));
      MYDIST_LOG(kDebug) << "NCCL " << NcclVersionText(library_->api.version) << " from "
                         << library_->path;
    }
    return &*library_;
  }

  Mutex devices_mutex_;
  std::map<int, std::weak_ptr<Device>> devices_ MYDIST_GUARDED_BY(devices_mutex_);
  Mutex mutex_;
  std::optional<nccl::NcclLibrary> library_ MYDIST_GUARDED_BY(mutex_);  // Set once.
};

}  // namespace
}  // namespace mydist

MYDIST_PLUGIN_VERSION

extern "C" {

MYDIST_EXPORT mydist::DevicePlugin* mydist_device_plugin_v1() {
  static auto* plugin = new mydist::NcclPlugin;
  return plugin;
}

}  // extern "C"
