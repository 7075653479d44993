// LaunchRankFold: Device::Fold on CUDA. Called by CudaDevice, from any thread, with its device
// current. Nothing here waits for the device.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "kernels/rank_fold.h"

namespace mydist::cuda {

// Errors: kInternal with the driver's words.
Status LaunchRankFold(const RankFold& fold, cudaStream_t stream);

// Brings the kernels to the current device: a driver that did so at the first launch might wait for
// what runs then, and that for another rank. Errors: kInternal.
Status LoadFoldKernels();

}  // namespace mydist::cuda
