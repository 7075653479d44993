// FoldCall: one reduction as the kernels get it; private to ops/. Plain data without functions: it
// is seen by code for CPUs with AVX, and nothing inline may be compiled there for everybody else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "world/collective_op.h"

namespace mydist::simd {

// Each output gets: fold over sources in order of (source × prescale), then × postscale ÷ divisor.
// `count` elements each; an output is one of the sources or overlaps nothing.
struct FoldCall {
  const void* const* sources;
  size_t source_count;  // At least 1.
  void* const* outputs;
  size_t output_count;
  int64_t count;
  DataType dtype;
  ReduceOp op;  // Sum, Min, Max or Product.
  double prescale;
  double postscale;
  int64_t divisor;
  bool streams;  // Stores pass by the caches.
};

}  // namespace mydist::simd
