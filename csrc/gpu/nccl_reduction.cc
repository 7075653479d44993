#include "gpu/nccl_reduction.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/status.h"
#include "kernels/element.h"

namespace mydist {
namespace {

using nccl::ElementType;
using nccl::ReductionKind;

std::optional<ElementType> ElementTypeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
    case DataType::kBool:
      return ElementType::kUint8;
    case DataType::kInt8:
      return ElementType::kInt8;
    case DataType::kInt32:
      return ElementType::kInt32;
    case DataType::kInt64:
      return ElementType::kInt64;
    case DataType::kFloat16:
      return ElementType::kFloat16;
    case DataType::kBfloat16:
      return ElementType::kBfloat16;
    case DataType::kFloat32:
    case DataType::kComplex64:
      return ElementType::kFloat32;
    case DataType::kFloat64:
    case DataType::kComplex128:
      return ElementType::kFloat64;
    case DataType::kInt16:
    case DataType::kFloat8E4m3:
    case DataType::kFloat8E5m2:
      return std::nullopt;
  }
  return std::nullopt;
}

// Of bytes that are 0 or 1, the largest is their "or" and the smallest their "and".
ReductionKind KindOf(ReduceOp op, DataType dtype) {
  const bool is_bool = dtype == DataType::kBool;
  switch (op) {
    case ReduceOp::kMin:
      return ReductionKind::kMin;
    case ReduceOp::kMax:
      return ReductionKind::kMax;
    case ReduceOp::kProduct:
      return is_bool ? ReductionKind::kMin : ReductionKind::kProd;
    default:
      return is_bool ? ReductionKind::kMax : ReductionKind::kSum;
  }
}

template <typename T>
std::array<uint8_t, 8> Stored(T value) {
  std::array<uint8_t, 8> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// Whether rounding `factor` to `type` costs no more than half a unit in the last place.
bool IsNormalIn(ElementType type, double factor) {
  const double magnitude = std::abs(factor);
  switch (type) {
    case ElementType::kFloat16:
      return magnitude >= 0x1p-14 && magnitude <= 65504.0;
    case ElementType::kBfloat16:
      return magnitude >= 0x1p-126 && magnitude <= 0x1.fep127;
    case ElementType::kFloat32:
      return magnitude >= 0x1p-126 && magnitude <= std::numeric_limits<float>::max();
    default:
      return std::isnormal(factor);
  }
}

void FoldFactors(const Reduction& reduction, int size, NcclReduction& plan) {
  if (reduction.prescale == 1.0 && reduction.postscale == 1.0 && reduction.divisor == size) {
    if (size > 1) plan.kind = ReductionKind::kAvg;
    plan.after = {};
    return;
  }
  const double after = reduction.postscale / static_cast<double>(reduction.divisor);
  const bool shrinks = std::abs(after) <= 1.0;
  const double multiplier = shrinks ? reduction.prescale * after : reduction.prescale;
  if (multiplier != 1.0 && !IsNormalIn(plan.type, multiplier)) return;
  if (multiplier != 1.0) plan.multiplier = multiplier;
  plan.before = {};
  if (shrinks) plan.after = {};
}

}  // namespace

bool NcclReduces(ReduceOp op, DataType dtype) {
  if (op == ReduceOp::kAdasum || !HasMeaning(op, dtype) || !ElementTypeOf(dtype)) return false;
  return !IsComplex(dtype) || op == ReduceOp::kSum || op == ReduceOp::kAverage;
}

NcclReduction NcclReductionOf(const Reduction& reduction, int size) {
  const std::optional<ElementType> type = ElementTypeOf(reduction.dtype);
  MYDIST_CHECK(type.has_value());
  NcclReduction plan;
  plan.type = *type;
  plan.element_bytes = SizeOf(reduction.dtype);
  plan.numbers_per_element = IsComplex(reduction.dtype) ? 2 : 1;
  plan.kind = KindOf(reduction.op, reduction.dtype);
  plan.before = {.multiplier = reduction.prescale};
  plan.after = {.multiplier = reduction.postscale, .divisor = reduction.divisor};
  // NCCL's factors of integers wrap around or round in another way than ours.
  const bool is_integer = IsInteger(reduction.dtype) || reduction.dtype == DataType::kBool;
  if (reduction.op == ReduceOp::kSum && !is_integer) FoldFactors(reduction, size, plan);
  return plan;
}

std::array<uint8_t, 8> NcclScalarOf(double value, ElementType type) {
  const auto single = static_cast<float>(value);
  switch (type) {
    case ElementType::kFloat16:
      return Stored(FloatToHalf(single));
    case ElementType::kBfloat16:
      return Stored(FloatToBfloat16(single));
    case ElementType::kFloat32:
      return Stored(single);
    case ElementType::kFloat64:
      return Stored(value);
    default:
      MYDIST_CHECK(false);
  }
}

}  // namespace mydist
