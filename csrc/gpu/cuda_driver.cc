#include "gpu/cuda_driver.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
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
                          " or newer, which mydist was built with. Update the driver, or build "
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
        "the NVIDIA driver shows no GPU to this process; CUDA_VISIBLE_DEVICES may hide GPUs");
  }
  MYDIST_RETURN_IF_ERROR(CudaStatus(error, "cudaGetDeviceCount"));
  return count;
}

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Result<std::unique_ptr<CudaContext>> CudaContext::Retain(int index) {
  MYDIST_ASSIGN_OR_RETURN(const int count, CountDevices());
  if (index < 0 || index >= count) {
    return Status::InvalidArgument("got GPU " + std::to_string(index) + ", expected 0 to " +
                                   std::to_string(count - 1) + ", because this process has " +
                                   std::to_string(count));
  }
  MYDIST_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  // Does all that cudaSetDevice does but make it current.
  MYDIST_RETURN_IF_ERROR(CudaStatus(cudaInitDevice(index, 0, 0), "cudaInitDevice", index));
  std::unique_ptr<CudaContext> context(new CudaContext(index, driver));
  MYDIST_RETURN_IF_ERROR(
      driver->StatusOf(driver->DeviceGet(&context->device_, index), "cuDeviceGet", index));
  MYDIST_RETURN_IF_ERROR(
      driver->StatusOf(driver->PrimaryContextRetain(&context->context_, context->device_),
                       "cuDevicePrimaryCtxRetain", index));
  std::array<char, 32> bus_id{};
  MYDIST_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), index),
                 "cudaDeviceGetPCIBusId", index));
  context->bus_id_ = bus_id.data();
  return context;
}

CudaContext::~CudaContext() {
  // May fail when the process ends, after the driver: nothing is left to release then.
  if (context_ != nullptr) (void)driver_->PrimaryContextRelease(device_);
}

CudaScope::CudaScope(const CudaContext& context) : context_(context) {
  const CudaDriver& driver = *context.driver_;
  status_ =
      driver.StatusOf(driver.PushCurrent(context.context_), "cuCtxPushCurrent", context.index());
  if (status_.ok()) (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
}

CudaScope::~CudaScope() {
  if (!status_.ok()) return;
  (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  CUcontext popped = nullptr;
  (void)context_.driver_->PopCurrent(&popped);
}

}  // namespace mydist::cuda
