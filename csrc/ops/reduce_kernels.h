// ReduceInRankOrder: where reducing really happens, for all dtypes and ops, on host memory.
// Pure and thread-safe. Every element is folded in the order of the sources, whatever the position,
// the count or the alignment, so results are bitwise the same wherever they are computed.
// float16 and bfloat16 are folded and scaled in float32 and rounded once, at the end.
#pragma once

#include <cstdint>
#include <span>

#include "ops/reduction.h"

namespace mydist {

// output[i] = fold over k of (sources[k][i] × prescale), then × postscale ÷ divisor; `count`
// elements each. `output` may be exactly one of the sources, otherwise nothing overlaps. At least
// one source; reduction.op is not kAverage and the reduction is valid. Works in cache-sized blocks,
// uses no memory but the stack.
void ReduceInRankOrder(std::span<const void* const> sources, void* output, int64_t count,
                       const Reduction& reduction);

}  // namespace mydist
