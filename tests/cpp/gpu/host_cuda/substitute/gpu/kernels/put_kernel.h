// PutKernel over HostCuda: the host calls the kernel for one thread after the other. Blocks come in
// order, as on a GPU with room for one; of a block the last thread comes first as often as not:
// none may count on another.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/host_cuda/host_cuda.h"
#include "gpu/kernels/launch_shape.h"

namespace mydist::cuda {

// NVIDIA's limits of compute capability 7.5 to 12, and the parameters' from CUDA 12.1 on.
inline constexpr uint32_t kMostBlocks = 0x7fffffff;
inline constexpr int kMostThreads = 1024;
inline constexpr size_t kMostParameterBytes = 32764;

template <typename... Parameters>
cudaError_t PutKernel(void (*kernel)(Parameters...), LaunchShape shape, cudaStream_t stream,
                      const Parameters&... arguments) {
  static_assert((sizeof(Parameters) + ...) <= kMostParameterBytes);
  if (shape.blocks < 1 || shape.blocks > kMostBlocks || shape.threads < 1 ||
      shape.threads > kMostThreads) {
    return cudaErrorInvalidConfiguration;
  }
  const auto run = [kernel, shape, ... arguments = arguments] {
    thread_local uint32_t launches = 0;
    const bool is_backward = ++launches % 2 == 0;
    const auto threads = static_cast<uint32_t>(shape.threads);
    for (blockIdx.x = 0; blockIdx.x < shape.blocks; ++blockIdx.x) {
      for (uint32_t thread = 0; thread < threads; ++thread) {
        threadIdx.x = is_backward ? threads - 1 - thread : thread;
        kernel(arguments...);
      }
    }
  };
  return host_cuda::Launch(reinterpret_cast<const void*>(kernel), stream, run);
}

}  // namespace mydist::cuda
