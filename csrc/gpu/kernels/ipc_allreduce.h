// LaunchIpcAllreduce: the allreduce between the GPUs of a host on CUDA. Called by CudaIpcPort, from
// any thread, with its device current. Nothing here waits for the device; the kernel waits for the
// kernels of the other ranks.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "memory/device/ipc_port.h"

namespace mydist::cuda {

// Errors: kInternal with the driver's words.
Status LaunchIpcAllreduce(const IpcAllreduce& job, cudaStream_t stream);

// Brings the kernels to the current device: a driver that did so at the first launch might wait for
// what runs then, and that for us. Errors: kInternal.
Status LoadIpcKernels();

// How many blocks a multiprocessor of the current device has at once, of the kernel that needs
// most. Errors: kInternal.
Result<int> IpcBlocksPerProcessor();

}  // namespace mydist::cuda
