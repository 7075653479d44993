// Verdict: what all ranks make of what came of a step on each: it counts for all of them or for
// none. Called by whoever drives the engine.
#pragma once

#include <string>

#include "algorithms/collectives.h"
#include "base/result.h"

namespace mydist {

// The first failure, e.g. "its rank 1: no peer access" (cut where it is long), the same on all
// `size` ranks of `exchange`, which spans them on host memory; empty: it went well on all. Blocks
// until all have called it. Errors of `exchange`.
Result<std::string> FirstFailure(const Status& outcome, Collectives& exchange, int size);

}  // namespace mydist
