// Whether the MPI of this process moves memory of GPUs (is CUDA-aware). Any thread, after MPI_Init:
// Open MPI learns only there what it has been built and told to do.
#pragma once

#include "config/config.h"

namespace mydist {

// As it says itself; false where it says nothing.
bool IsCudaAware();

// As it is told to, else as it says itself: one that leaves such memory to a library below (UCX)
// may not know.
inline bool TakesDeviceMemory(CudaAwareMpiChoice choice) {
  return choice == CudaAwareMpiChoice::kAuto ? IsCudaAware() : choice == CudaAwareMpiChoice::kOn;
}

}  // namespace mydist
