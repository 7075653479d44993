// LaunchKernel and LoadKernel: the runtime takes arguments of a kernel as addresses of anything;
// here the compiler compares them with its parameters.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "ops/cuda/cuda_status.h"

namespace mydist::cuda {

struct LaunchShape {
  uint32_t blocks = 1;
  int threads = 1;  // Of a block.
};

// Puts `kernel` on `stream`, of which the current GPU must be the owner. `call` names it in errors.
template <typename... Parameters>
Status LaunchKernel(const char* call, void (*kernel)(Parameters...), LaunchShape shape,
                    cudaStream_t stream, const std::type_identity_t<Parameters>&... arguments) {
  void* addresses[] = {const_cast<Parameters*>(&arguments)...};
  return CudaStatus(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(shape.blocks),
                       dim3(static_cast<unsigned>(shape.threads)), addresses, 0, stream),
      call);
}

// Has the driver load it to the current GPU. What it loads lazily, at the first launch, may have to
// wait for what is running there.
template <typename... Parameters>
Status LoadKernel(const char* call, void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes;
  return CudaStatus(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
                    call);
}

}  // namespace mydist::cuda
