// GpuBlock: a block of threads as a kernel written for whole blocks has it. Tests on the host have
// another one. What they run too is for both sides, but this one never runs on the host.
#pragma once

#include <cstdint>

#include "base/export.h"

namespace mydist::cuda {

struct GpuBlock {
  MYDIST_HOST_DEVICE uint32_t index() const {
#if defined(__CUDA_ARCH__)
    return blockIdx.x;
#else
    return 0;
#endif
  }
  MYDIST_HOST_DEVICE uint32_t count() const {
#if defined(__CUDA_ARCH__)
    return gridDim.x;
#else
    return 0;
#endif
  }
  template <typename Work>
  MYDIST_HOST_DEVICE void ForEachThread(const Work& work) const {
#if defined(__CUDA_ARCH__)
    work(threadIdx.x);
    __syncthreads();
#endif
  }
  template <typename Test>
  MYDIST_HOST_DEVICE bool All(const Test& test) const {
#if defined(__CUDA_ARCH__)
    return __syncthreads_and(test(threadIdx.x) ? 1 : 0) != 0;
#else
    return false;
#endif
  }
  // Short: it is added to the latency of every allreduce.
  MYDIST_HOST_DEVICE void Pause() const {
#if defined(__CUDA_ARCH__)
    __nanosleep(20);
#endif
  }
};

}  // namespace mydist::cuda
