// PutKernel: what is left of a launch once its types are known to fit. Tests put another one in its
// place.
#pragma once

#include <cuda_runtime_api.h>

#include "gpu/kernels/launch_shape.h"

namespace mydist::cuda {

template <typename... Parameters>
cudaError_t PutKernel(void (*kernel)(Parameters...), LaunchShape shape, cudaStream_t stream,
                      const Parameters&... arguments) {
  void* addresses[] = {const_cast<Parameters*>(&arguments)...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(shape.blocks),
                          dim3(static_cast<unsigned>(shape.threads)), addresses, 0, stream);
}

}  // namespace mydist::cuda
