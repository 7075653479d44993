// Kernels: the inner loops of ops/, compiled once for each kind of CPU from the one source
// fold_lanes.h; private to ops/. Pure and thread-safe. All paths give the same bits for the same
// input. NaN in a computed float is always the same NaN, because which of two NaNs an addition
// passes on is up to the compiler.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "world/collective_op.h"

namespace mydist::simd {

// FoldCall: one reduction as the kernels get it; private to ops/. Plain data without functions: it
// is seen by code for CPUs with AVX, and nothing inline may be compiled there for everybody else.

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

struct Kernels {
  void (*fold)(const FoldCall& call);
  // `count` numbers each; source and output do not overlap. See element.h.
  void (*widen_half)(const uint16_t* source, float* output, int64_t count);
  void (*narrow_half)(const float* source, uint16_t* output, int64_t count);
  void (*widen_bfloat16)(const uint16_t* source, float* output, int64_t count);
  void (*narrow_bfloat16)(const float* source, uint16_t* output, int64_t count);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace mydist::simd
