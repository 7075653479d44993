// What nvcc declares for kernels by itself; comes before all else in them here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#if !defined(__launch_bounds__)
#define __launch_bounds__(...)
#endif

namespace mydist::host_cuda {

struct KernelIndex {
  uint32_t x = 0;
};

}  // namespace mydist::host_cuda

inline thread_local mydist::host_cuda::KernelIndex blockIdx;
inline thread_local mydist::host_cuda::KernelIndex threadIdx;
