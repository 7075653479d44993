// Reduction: how the contributions of all ranks become one result. Pure data.
// result = op over ranks r of (x_r × prescale), host by host, those of a host in rank order, then ×
// postscale ÷ divisor. Agreed on by all ranks before anything is reduced.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/export.h"
#include "base/status.h"
#include "world/collective_op.h"

namespace mydist {

struct MYDIST_EXPORT Reduction {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  // What an average divides by; kept apart from postscale because x ÷ 49 is exact where
  // x × (1 ÷ 49) is not, and integers truncate.
  int64_t divisor = 1;

  bool ScalesBefore() const { return prescale != 1.0; }
  bool ScalesAfter() const { return postscale != 1.0 || divisor != 1; }

  // kAverage over `size` ranks becomes a sum with a divisor; every other op stays as it is.
  Reduction Resolved(int size) const;

  // kInvalidArgument when `op` has no meaning for `dtype` or a bool is to be scaled.
  Status Validate() const;
  // Also when `operation` cannot reduce by `op`: Adasum is an allreduce.
  Status ValidateFor(OpKind operation) const;

  bool operator==(const Reduction&) const = default;
};

// ReduceInRankOrder: where reducing really happens, for all dtypes and ops, on host memory.
// Pure and thread-safe. Every element is folded in the order of the sources, whatever the position,
// the count, the alignment or the CPU (kernels/simd), so results are bitwise the same wherever they
// are computed. float16 and bfloat16 are folded and scaled in float32 and rounded once, at the end.
// NaN in a sum, a product, an extreme or a scaled number is the positive quiet NaN without payload.

// Each output[i] = fold over k of (sources[k][i] × prescale), then × postscale ÷ divisor; `count`
// elements each. An output may be exactly one of the sources, otherwise nothing overlaps. At least
// one source; reduction.op is not kAverage and the reduction is valid. Reads and writes everything
// once, uses no memory but the stack. With one source and nothing to scale it copies the bytes.
void ReduceInRankOrder(std::span<const void* const> sources, std::span<void* const> outputs,
                       int64_t count, const Reduction& reduction);

// The same into one output.
MYDIST_EXPORT void ReduceInRankOrder(std::span<const void* const> sources, void* output,
                                     int64_t count, const Reduction& reduction);

// How many reductions on this thread have overflowed: a result is infinite, or was on the way,
// although no number it comes from is. Of floating point alone; Adasum does not count.
MYDIST_EXPORT int64_t OverflowsOfThread();

// OverflowWatch: while it lives, an overflow on this thread counts as that of a reduction. For what
// rounds a result apart from ReduceInRankOrder. On the stack.
class MYDIST_EXPORT OverflowWatch {
 public:
  OverflowWatch();
  ~OverflowWatch();
  OverflowWatch(const OverflowWatch&) = delete;
  OverflowWatch& operator=(const OverflowWatch&) = delete;

 private:
  const bool is_of_program_;  // One has been noted before.
};

// Neutral: what a rank that has joined contributes to a reduction it does not take part in
// (reduce). Pure. Reducing any x with the neutral element gives x, bit for bit, for every dtype and
// op; for floating point the Sum's is -0.0, since +0.0 would turn a sum of -0.0 into +0.0.
// Exceptions: a NaN stays a NaN but may become a quiet one, and a complex Product may change the
// sign of a zero and makes NaN of an infinity. A prescale factor applies to what is filled in here
// as well, and is allowed for, but not in a Product, which the root refuses once a rank has joined.

// Fills `data` with `count` neutral elements of reduction.dtype; null when count is 0.
// `reduction` is valid, with a finite prescale factor; any op.
MYDIST_EXPORT void FillNeutral(void* data, int64_t count, const Reduction& reduction);

}  // namespace mydist
