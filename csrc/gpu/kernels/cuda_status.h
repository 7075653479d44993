// CudaStatus: what a call of CUDA's runtime said, as a Status. Pure but for the runtime's memory of
// the last error of this thread, which it empties: the next call would be blamed for it.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"

namespace mydist::cuda {

// Which call, on which GPU (-1: not said), what CUDA says, and what to do where that is known.
// kInternal.
Status CudaStatus(cudaError_t error, const char* call, int device = -1);

}  // namespace mydist::cuda

#define MYDIST_RETURN_IF_CUDA_ERROR(call) \
  MYDIST_RETURN_IF_ERROR(::mydist::cuda::CudaStatus((call), #call))
