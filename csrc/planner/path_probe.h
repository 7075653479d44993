// PathProbe: measures what a reduction over all ranks costs here, by a few of them on the
// collectives themselves: nothing is negotiated, named, counted or recorded.
// Run once by Engine::Start, on the thread that calls init(), before the engine's own exists.
// Blocking and collective over all ranks of the job; takes some milliseconds.
#pragma once

#include <chrono>
#include <cstdint>

#include "algorithms/collectives.h"
#include "base/status.h"
#include "memory/device/stream_collectives.h"
#include "planner/bucket_plan.h"
#include "transport/transport.h"

namespace mydist {

// How much "large" is.
inline constexpr int64_t kProbeBytes = int64_t{1} << 20;
// Of the latency, what is not measured: waking the engine for a request and the caller for the
// result takes as long as two wake-ups of an idle core.
inline constexpr std::chrono::microseconds kWakeUps{80};

struct ProbedPath {
  Collectives* small = nullptr;  // Reduces a few bytes. Not null.
  Collectives* large = nullptr;  // Reduces megabytes. Not null; may be the same.
  float* memory = nullptr;  // Where kProbeBytes lie as gradients will; null: in private memory.
  Transport* transport = nullptr;  // What negotiation is like. May be null: like `small`.
};

// Equal on all ranks: the slowest rank's. The errors of Collectives.
Result<PathCosts> MeasurePath(const ProbedPath& path);

// IpcProbe: up to which size allreduces from GPU to GPU are faster than what serves else, measured
// by a few of both. Run once for a process set, by whoever drives the engine, before the first
// batch that needs all its ranks. Blocks until all have called it.

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
