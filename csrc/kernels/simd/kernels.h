// Kernels: the inner loops of ops/, compiled once for each kind of CPU from the one source
// fold_lanes.h; private to ops/. Pure and thread-safe. All paths give the same bits for the same
// input. NaN in a computed float is always the same NaN, because which of two NaNs an addition
// passes on is up to the compiler.
#pragma once

#include <cstdint>

#include "kernels/simd/fold_call.h"

namespace mydist::simd {

struct Kernels {
  void (*fold)(const FoldCall& call);
  // `count` numbers each; source and output do not overlap. See half.h.
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
