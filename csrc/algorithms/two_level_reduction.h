// TwoLevelReduction: one reduction as two, inside hosts and between them, so that every factor is
// applied once and 16-bit floats are rounded once. Pure data; private to ops/.
#pragma once

#include <cstdint>

#include "kernels/reduction.h"
#include "kernels/widening.h"

namespace mydist {

struct TwoLevelReduction {
  Reduction on_host;  // With the prescale factor.
  Reduction across;   // With what comes after the fold.
  DataType dtype;     // Of the tensors.
  bool is_wide;       // Partial results are float32, though the tensors are not.

  explicit TwoLevelReduction(const Reduction& whole)
      : on_host(whole), across(whole), dtype(whole.dtype), is_wide(NeedsWidePartials(whole)) {
    on_host.postscale = 1.0;
    on_host.divisor = 1;
    across.prescale = 1.0;
    if (is_wide) on_host.dtype = across.dtype = DataType::kFloat32;
  }

  int64_t partial_bytes() const { return SizeOf(across.dtype); }  // Of one element.

 private:
  // Min and Max round nothing, unless they scale.
  static bool NeedsWidePartials(const Reduction& whole) {
    const bool picks = whole.op == ReduceOp::kMin || whole.op == ReduceOp::kMax;
    return IsHalfWidth(whole.dtype) && !(picks && !whole.ScalesBefore() && !whole.ScalesAfter());
  }
};

}  // namespace mydist
