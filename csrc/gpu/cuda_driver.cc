#include "gpu/cuda_driver.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "gpu/kernels/cuda_status.h"

namespace mydist::cuda {
namespace {

constexpr const char* kFileName = "libcuda.so.1";

template <typename Function>
bool Take(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Result<const CudaDriver*> Open() {
  void* library = dlopen(kFileName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    const std::string text = error != nullptr ? error : "";
    if (text.find("No such file") != std::string::npos) {
      return Status::Internal("no NVIDIA driver found (" + std::string(kFileName) + ")");
    }
    return Status::Internal("the NVIDIA driver cannot be loaded: " + text);
  }
  auto* driver = new CudaDriver;
  if (Take(library, "cuGetErrorName", driver->GetErrorName) &&
      Take(library, "cuDeviceGet", driver->DeviceGet) &&
      Take(library, "cuDevicePrimaryCtxRetain", driver->PrimaryContextRetain) &&
      Take(library, "cuDevicePrimaryCtxRelease_v2", driver->PrimaryContextRelease) &&
      Take(library, "cuCtxPushCurrent_v2", driver->PushCurrent) &&
      Take(library, "cuCtxPopCurrent_v2", driver->PopCurrent)) {
    return driver;
  }
  delete driver;
  dlclose(library);
  return Status::Internal(std::string("the NVIDIA driver (") + kFileName +
                          ") is too old: it lacks functions of CUDA 11. Update it");
}

Status TooOld(int version) {
  return Status::Internal("the NVIDIA driver is for CUDA " + VersionText(version) + ", expected " +
                          VersionText(CUDART_VERSION) +
                          " or newer, as mydist was built with. Update the driver, or build "
                          "mydist with an older CUDA toolkit");
}

}  // namespace

Result<const CudaDriver*> CudaDriver::Load() {
  static const auto* driver = new Result(Open());
  return *driver;
}

Status CudaDriver::StatusOf(CUresult result, const char* call, int device) const {
  if (result == CUDA_SUCCESS) return Status::Ok();
  const char* name = nullptr;
  if (GetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  return Status::Internal(std::string(call) + " on GPU " + std::to_string(device) +
                          " failed: " + name);
}

Result<int> CountDevices() {
  MYDIST_RETURN_IF_ERROR(CudaDriver::Load().status());
  int version = 0;
  MYDIST_RETURN_IF_ERROR(CudaStatus(cudaDriverGetVersion(&version), "cudaDriverGetVersion"));
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    return TooOld(version);
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    (void)cudaGetLastError();
    return Status::Internal(
        "the NVIDIA driver shows this process no GPU; CUDA_VISIBLE_DEVICES may hide them");
  }
  MYDIST_RETURN_IF_ERROR(CudaStatus(error, "cudaGetDeviceCount"));
  return count;
}

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace mydist::cuda
