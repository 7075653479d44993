// Neutral: what a rank that has joined contributes to a reduction it does not take part in
// (reduce). Pure. Reducing any x with the neutral element gives x, bit for bit, for every dtype and
// op; for floating point the Sum's is -0.0, since +0.0 would turn a sum of -0.0 into +0.0.
// Exceptions: a NaN stays a NaN but may become a quiet one, and a complex Product may change the
// sign of a zero and makes NaN of an infinity. The prescale factor applies to what is filled in
// here as well: it is chosen so that it is neutral once scaled.
#pragma once

#include <cstdint>

#include "base/export.h"
#include "base/status.h"
#include "kernels/reduction.h"

namespace mydist {

// kInvalidArgument when no element of the dtype is neutral once scaled: some Products with a
// prescale factor, and floating-point sums with one that is not finite. The same on all ranks, so
// all can refuse the reduction when somebody has joined.
MYDIST_EXPORT Status CheckNeutral(const Reduction& reduction);

// Fills `data` with `count` neutral elements of reduction.dtype; with the nearest to it where
// CheckNeutral fails. `data` may be null when count is 0. `reduction` is valid; any op.
MYDIST_EXPORT void FillNeutral(void* data, int64_t count, const Reduction& reduction);

}  // namespace mydist
