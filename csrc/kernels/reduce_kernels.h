// ReduceInRankOrder: where reducing really happens, for all dtypes and ops, on host memory.
// Pure and thread-safe. Every element is folded in the order of the sources, whatever the position,
// the count, the alignment or the CPU (kernels/simd), so results are bitwise the same wherever they
// are computed. float16 and bfloat16 are folded and scaled in float32 and rounded once, at the end.
// NaN in a sum, a product, an extreme or a scaled number is the positive quiet NaN without payload.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/reduction.h"

namespace mydist {

enum class Stores {
  kCached,
  // Past the caches: for outputs that are no sources, are larger than the last-level cache, and are
  // not read soon.
  kStreaming,
};

// Each output[i] = fold over k of (sources[k][i] × prescale), then × postscale ÷ divisor; `count`
// elements each. An output may be exactly one of the sources, otherwise nothing overlaps. At least
// one source; reduction.op is not kAverage and the reduction is valid. Reads and writes everything
// once, uses no memory but the stack. With one source and nothing to scale it copies the bytes.
void ReduceInRankOrder(std::span<const void* const> sources, std::span<void* const> outputs,
                       int64_t count, const Reduction& reduction, Stores stores = Stores::kCached);

// The same into one output.
void ReduceInRankOrder(std::span<const void* const> sources, void* output, int64_t count,
                       const Reduction& reduction);

}  // namespace mydist
