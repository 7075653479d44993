// NcclReduction: how one of our reductions is put to NCCL (reduce). Pure.
// What NCCL cannot do, scales that are no factor of a floating-point sum, is left to a pass before
// and one after. The numbers differ from kernels/scale.h in this: NCCL adds in an order of its own,
// 16-bit floats may be rounded to 16 bits at every step, and the factor of a sum is one number,
// rounded to the elements' type and multiplied before the sum.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "gpu/nccl_api.h"
#include "kernels/conversion.h"
#include "kernels/reduction.h"

namespace mydist {

struct NcclReduction {
  nccl::ElementType type = nccl::ElementType::kFloat32;
  int64_t element_bytes = 4;        // Of ours.
  int64_t numbers_per_element = 1;  // A complex element is two numbers for NCCL.
  nccl::ReductionKind kind = nccl::ReductionKind::kSum;
  // Of a PreMulSum: what every contribution is multiplied by; `kind` is then kSum.
  std::optional<double> multiplier;
  Factor before{};  // What is left for a pass over each contribution,
  Factor after{};   // and for one over the result.
};

// Whether NCCL can: not Adasum, no int16, of complex numbers only sums.
bool NcclReduces(ReduceOp op, DataType dtype);

// `reduction` is resolved, and NcclReduces it; `size` ranks take part. A factor that shrinks is
// applied before the sum, where it also keeps float16 from overflowing; one that grows, after it.
// A bool other than 0 and 1 counts as its byte does: NCCL knows no bool.
NcclReduction NcclReductionOf(const Reduction& reduction, int size);

// `value` as NCCL reads a scalar of `type`, which is a floating-point one.
std::array<uint8_t, 8> NcclScalarOf(double value, nccl::ElementType type);

}  // namespace mydist
