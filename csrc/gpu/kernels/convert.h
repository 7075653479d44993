// LaunchConvert: the one kernel behind Device::Convert (pack, unpack, scale, cast) on CUDA.
// Called by CudaDevice, from any thread, with its device current. Nothing here waits for the
// device. A launch carries its segments in its parameters; a list too long for them travels in a
// table of ConvertScratch. While the stream is captured such a list becomes several launches
// instead: a graph must not read, whenever it is replayed, what others have written over.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "base/status.h"
#include "gpu/kernels/convert_plan.h"
#include "gpu/kernels/convert_scratch.h"
#include "memory/device/device.h"

namespace mydist::cuda {

// target[i] = source[i] × factor for all segments, on `stream`, as Device::Convert says. `segments`
// is read before this returns. Errors: kInvalidArgument for an address that the type does not
// allow, kInternal with the driver's words.
Status LaunchConvert(std::span<const ConvertSegment> segments, const Conversion& conversion,
                     ConvertScratch& scratch, cudaStream_t stream,
                     const ConvertTuning& tuning = {});

// Brings the kernels to the current device. Part of ConvertScratch::Create. Errors: kInternal, e.g.
// where the device is older than those that the library was built for.
Status LoadConvertKernels();

}  // namespace mydist::cuda
