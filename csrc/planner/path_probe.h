// PathProbe: measures what a reduction over all ranks costs here, by a few of them on the
// collectives themselves: nothing is negotiated, named, counted or recorded.
// Run once by Engine::Start, on the thread that calls init(), before the engine's own exists.
// Blocking and collective over all ranks of the job; takes some milliseconds.
#pragma once

#include <chrono>
#include <cstdint>

#include "algorithms/collectives.h"
#include "base/status.h"
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

}  // namespace mydist
