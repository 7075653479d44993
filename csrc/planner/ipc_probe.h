// IpcProbe: up to which size allreduces from GPU to GPU are faster than what serves else, measured
// by a few of both. Run once for a process set, by whoever drives the engine, before the first
// batch that needs all its ranks. Blocks until all have called it.
#pragma once

#include <cstdint>

#include "algorithms/collectives.h"
#include "base/result.h"
#include "memory/device/stream_collectives.h"

namespace mydist {

struct IpcRivals {
  StreamSeat seat;
  uint8_t* memory = nullptr;  // Of the device, for what is on the stream: kIpcHalfBytes of any
                              // content, which is lost.
  Collectives* over_ipc = nullptr;
  Collectives* otherwise = nullptr;
  Collectives* exchange = nullptr;  // Of the same ranks, for host memory.
  int size = 1;
};

// In bytes; 0: never. The same on all ranks. Errors of Device, of the Collectives, and what the
// seat's watch says.
Result<int64_t> MeasureIpcLimit(const IpcRivals& rivals);

}  // namespace mydist
