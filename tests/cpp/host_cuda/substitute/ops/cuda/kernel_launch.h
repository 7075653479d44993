// LaunchKernel and LoadKernel over HostCuda: the host calls the kernel for one thread after the
// other. Blocks come in order, as on a GPU with room for one; of a block the last thread comes
// first as often as not: none may count on another.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "host_cuda/host_cuda.h"
#include "ops/cuda/cuda_status.h"

namespace mydist::cuda {

struct LaunchShape {
  uint32_t blocks = 1;
  int threads = 1;  // Of a block.
};

// NVIDIA's limits of compute capability 7.5 to 12, and the parameters' from CUDA 12.1 on.
inline constexpr uint32_t kMostBlocks = 0x7fffffff;
inline constexpr int kMostThreads = 1024;
inline constexpr size_t kMostParameterBytes = 32764;

template <typename... Parameters>
Status LaunchKernel(const char* call, void (*kernel)(Parameters...), LaunchShape shape,
                    cudaStream_t stream, const std::type_identity_t<Parameters>&... arguments) {
  static_assert((sizeof(Parameters) + ...) <= kMostParameterBytes);
  if (shape.blocks < 1 || shape.blocks > kMostBlocks || shape.threads < 1 ||
      shape.threads > kMostThreads) {
    return CudaStatus(cudaErrorInvalidConfiguration, call);
  }
  const auto run = [kernel, shape, ... arguments = arguments] {
    thread_local uint32_t launches = 0;
    const bool is_backward = ++launches % 2 == 0;
    const auto threads = static_cast<uint32_t>(shape.threads);
    gridDim.x = shape.blocks;
    for (blockIdx.x = 0; blockIdx.x < shape.blocks; ++blockIdx.x) {
      for (uint32_t thread = 0; thread < threads; ++thread) {
        threadIdx.x = is_backward ? threads - 1 - thread : thread;
        kernel(arguments...);
      }
    }
  };
  return CudaStatus(host_cuda::Launch(reinterpret_cast<const void*>(kernel), stream, run), call);
}

template <typename... Parameters>
Status LoadKernel(const char* call, void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes;
  return CudaStatus(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
                    call);
}

}  // namespace mydist::cuda
