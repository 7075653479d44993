#include "gpu/cuda_context.h"

#include <array>
#include <string>

namespace mydist::cuda {

Result<std::unique_ptr<CudaContext>> CudaContext::Retain(int index) {
  MYDIST_ASSIGN_OR_RETURN(const int count, CountDevices());
  if (index < 0 || index >= count) {
    return Status::InvalidArgument("got GPU " + std::to_string(index) + ", expected 0 to " +
                                   std::to_string(count - 1) + ", as this process has " +
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
