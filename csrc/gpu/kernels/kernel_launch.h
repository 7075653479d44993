// LaunchKernel and LoadKernel: the runtime takes a kernel and its arguments as
// addresses of anything; here the compiler compares them with its parameters.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "base/status.h"
#include "gpu/kernels/cuda_status.h"
#include "gpu/kernels/launch_shape.h"
#include "gpu/kernels/put_kernel.h"

namespace mydist::cuda {

// Puts `kernel` on `stream`, of which the current GPU must be the owner. `call` names it in errors.
template <typename... Parameters>
Status LaunchKernel(const char* call, void (*kernel)(Parameters...), LaunchShape shape,
                    cudaStream_t stream, const std::type_identity_t<Parameters>&... arguments) {
  return CudaStatus(PutKernel(kernel, shape, stream, arguments...), call);
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
