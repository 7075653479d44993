// LaunchConvert: the one kernel behind Device::Convert (pack, unpack, scale, cast) on CUDA.
// Called by CudaDevice, from any thread, with its device current. Nothing here waits for the
// device. A launch carries its segments in its parameters, so a graph holds all that it needs; a
// list too long for one launch becomes several.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "base/status.h"
#include "memory/device/device.h"

namespace mydist::cuda {

// target[i] = source[i] × factor for all segments, on `stream`, as Device::Convert says. `segments`
// is read before this returns. `processor_count`: of the device's multiprocessors. Errors:
// kInvalidArgument for an address that the type does not allow, kInternal with the driver's words.
Status LaunchConvert(std::span<const ConvertSegment> segments, const Conversion& conversion,
                     int processor_count, cudaStream_t stream);

// Brings the kernels to the current device, before the first launch: later that might have to wait
// for what runs then. Errors: kInternal, e.g. where the device is older than those that the library
// was built for.
Status LoadConvertKernels();

}  // namespace mydist::cuda
