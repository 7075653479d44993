// PathCosts: what it costs to reduce something over all ranks of the job, as measured once while it
// starts. The same on all ranks. Pure data.
#pragma once

#include <chrono>

namespace mydist {

struct PathCosts {
  std::chrono::duration<double> latency{0};  // Of an allreduce of next to nothing, negotiated.
  double seconds_per_byte = 0;               // Of a large one.

  bool measured() const { return seconds_per_byte > 0; }
};

}  // namespace mydist
