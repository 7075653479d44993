// Devices, contexts, threads and errors of HostCuda.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "gpu/host_cuda/world.h"

namespace mydist::host_cuda {
namespace {

struct Name {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr Name kNames[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
};

const Name& NameOf(cudaError_t error) {
  static constexpr Name kOther = {cudaErrorUnknown, "cudaErrorOther", "some other error"};
  const auto* const found = std::find_if(std::begin(kNames), std::end(kNames),
                                         [&](const Name& name) { return name.error == error; });
  return found != std::end(kNames) ? *found : kOther;
}

bool IsGpu(int index) { return index >= 0 && index < kGpuCount; }

// The driver knows nothing of the runtime's last error.
template <typename Body>
CUresult RunDriver(const char* call, const Body& body) {
  World& world = World::Get();
  MutexLock lock(world.mutex);
  const cudaError_t error = world.Begin(call, Needs::kNothing);
  return error == cudaSuccess ? body(world) : static_cast<CUresult>(error);
}

}  // namespace
}  // namespace mydist::host_cuda

using mydist::host_cuda::IsGpu;
using mydist::host_cuda::kGpuBytes;
using mydist::host_cuda::kGpuCount;
using mydist::host_cuda::NameOf;
using mydist::host_cuda::Needs;
using mydist::host_cuda::RunDriver;
using mydist::host_cuda::World;

extern "C" {

const char* cudaGetErrorName(cudaError_t error) { return NameOf(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return NameOf(error).text; }

cudaError_t cudaGetLastError() { return std::exchange(World::Thread().last_error, cudaSuccess); }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  return World::Get().Run("cudaGetDeviceCount", Needs::kNothing, [&](World&) {
    *count = kGpuCount;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return World::Get().Run("cudaSetDevice", Needs::kNothing, [&](World&) {
    if (!IsGpu(device)) return cudaErrorInvalidDevice;
    World::Thread().current = {device};
    return cudaSuccess;
  });
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return World::Get().Run("cudaInitDevice", Needs::kNothing, [&](World& world) {
    return IsGpu(device) ? world.gpu(device).broken : cudaErrorInvalidDevice;
  });
}

// Asks for no context: the first GPU where none is current.
cudaError_t cudaGetDevice(int* device) {
  return World::Get().Run("cudaGetDevice", Needs::kNothing, [&](World&) {
    const auto& current = World::Thread().current;
    *device = current.empty() ? 0 : current.back();
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return World::Get().Run("cudaDeviceGetAttribute", Needs::kNothing, [&](World&) {
    if (!IsGpu(device)) return cudaErrorInvalidValue;
    if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
    *value = 4;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return World::Get().Run("cudaDeviceGetPCIBusId", Needs::kNothing, [&](World&) {
    if (!IsGpu(device) || length < 13) return cudaErrorInvalidValue;
    static_cast<void>(std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0",
                                    static_cast<unsigned>(0x10 + device)));
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return World::Get().Run("cudaDeviceGetStreamPriorityRange", Needs::kGpu, [&](World&) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return World::Get().Run("cudaDeviceSynchronize", Needs::kGpuAndNoGraph,
                          [](World& world) { return world.AwaitGpu(world.CurrentGpu()); });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return World::Get().Run("cudaThreadExchangeStreamCaptureMode", Needs::kNothing, [&](World&) {
    std::swap(*mode, World::Thread().capture_mode);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return World::Get().Run("cudaFuncGetAttributes", Needs::kGpu, [&](World& world) {
    *attributes = {};
    world.current().loaded.insert(kernel);
    return cudaSuccess;
  });
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int index) {
  return RunDriver("cuDeviceGet", [&](World&) {
    *device = index + 100;  // Not the index, which must not be taken for it.
    return IsGpu(index) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return RunDriver("cuDevicePrimaryCtxRetain", [&](World& world) {
    if (!IsGpu(device - 100)) return CUDA_ERROR_INVALID_DEVICE;
    auto& gpu = world.gpu(device - 100);
    ++gpu.retained;
    *context = &gpu.context;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return RunDriver("cuDevicePrimaryCtxRelease", [&](World& world) {
    if (!IsGpu(device - 100)) return CUDA_ERROR_INVALID_DEVICE;
    if (--world.gpu(device - 100).retained < 0) world.Complain("it was not retained");
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return RunDriver("cuCtxPushCurrent", [&](World& world) {
    if (context == nullptr || world.gpu(context->gpu).retained == 0) {
      world.Complain("a context that nobody has retained");
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    World::Thread().current.push_back(context->gpu);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  return RunDriver("cuCtxPopCurrent", [&](World& world) {
    auto& current = World::Thread().current;
    if (current.empty()) {
      world.Complain("nothing was pushed");
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    *context = &world.gpu(current.back()).context;
    current.pop_back();
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
