// SimdPath: which build of the kernels this process uses; chosen once, from the CPU or by
// MYDIST_SIMD. Thread-safe. The choice changes speed only, never a bit of a result, so ranks need
// not agree on it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/export.h"
#include "base/status.h"
#include "world/collective_op.h"

namespace mydist::simd {

// FoldCall: one reduction as the kernels get it; private to kernels/. Plain data without functions:
// it is seen by code for CPUs with AVX, and nothing inline may be compiled there for everybody
// else. Each output gets: fold over sources in order of (source × prescale), then × postscale ÷
// divisor. `count` elements each; an output is one of the sources or overlaps nothing.
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
};

// AdamwCall: one step as the kernels get it; see kernels/adamw.h. Plain data for the same reason.
struct AdamwCall {
  float* parameters;
  const float* gradients;
  float* first;
  float* second;
  int64_t count;
  float decay;
  float first_weight;
  float second_decay;
  float second_weight;
  float second_root;
  float epsilon;
  float step_size;
};

// Kernels: the inner loops, compiled once for each kind of CPU from the one source fold_lanes.h;
// private to kernels/. Pure and thread-safe. All paths give the same bits for the same input. NaN
// in a computed float is always the same NaN, because which of two NaNs an addition passes on is up
// to the compiler.
struct Kernels {
  void (*fold)(const FoldCall& call);
  // `count` numbers each; source and output do not overlap. See element.h.
  void (*widen_half)(const uint16_t* source, float* output, int64_t count);
  void (*narrow_half)(const float* source, uint16_t* output, int64_t count);
  void (*widen_bfloat16)(const uint16_t* source, float* output, int64_t count);
  void (*narrow_bfloat16)(const float* source, uint16_t* output, int64_t count);
  // A NaN stays a NaN, with any payload.
  void (*adamw)(const AdamwCall& call);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

enum class SimdPath : uint8_t { kPortable, kAvx2, kAvx512 };
inline constexpr std::array kAllSimdPaths = {SimdPath::kPortable, SimdPath::kAvx2,
                                             SimdPath::kAvx512};

// The word of MYDIST_SIMD: "portable", "avx2" or "avx512".
std::string_view SimdPathName(SimdPath path);
// Whether CPU and operating system can run it; the portable path always.
bool CpuHas(SimdPath path);
// The kernels of one path, which the CPU must have.
const Kernels& KernelsOf(SimdPath path);

// What the process uses: the widest path the CPU has, until UseSimd says otherwise.
SimdPath CurrentPath();
const Kernels& CurrentKernels();

// `word` is a path's name or "auto". kInvalidArgument naming what this CPU has when it lacks the
// path; nothing changes then.
[[nodiscard]] Status UseSimd(std::string_view word);

}  // namespace mydist::simd
