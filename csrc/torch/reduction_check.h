// Whether a reduction can be asked for: the op and the factors have a meaning for the dtype.
// Pure; used on the calling thread by the collectives and the gradient reducer.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/status.h"
#include "torch/error_translation.h"
#include "world/collective_op.h"

namespace mydist {

struct ReductionArguments {
  ReduceOp op = ReduceOp::kAverage;
  double prescale = 1.0;
  double postscale = 1.0;
};

// Advice for an `op` that has no meaning for `dtype`.
inline std::string_view InsteadOf(ReduceOp op, DataType dtype) {
  if (IsFloat8(dtype)) return "mydist sends it, but does not reduce it; reduce it as bfloat16.";
  if (op == ReduceOp::kAdasum)
    return "Adasum needs real floating-point numbers; use Sum or Average.";
  if (IsComplex(dtype)) return "Complex numbers have no order; use Sum, Average or Product.";
  return "Use Sum or Max for a logical or, Min or Product for a logical and.";
}

// kInvalidArgument naming what, op and dtype. `what` is e.g. "allreduce of 'x'".
inline Status CheckReduction(const ReductionArguments& arguments, DataType dtype,
                             const std::string& what) {
  if (!std::isfinite(arguments.prescale) || !std::isfinite(arguments.postscale)) {
    return Status::InvalidArgument(
        what + ": prescale_factor is " + std::to_string(arguments.prescale) +
        " and postscale_factor is " + std::to_string(arguments.postscale) +
        ", expected finite numbers");
  }
  if (!HasMeaning(arguments.op, dtype)) {
    return Status::InvalidArgument(what + ": op " + std::string(ReduceOpName(arguments.op)) +
                                   " has no meaning for dtype " + std::string(DataTypeName(dtype)) +
                                   ". " + std::string(InsteadOf(arguments.op, dtype)));
  }
  if (dtype == DataType::kBool && (arguments.prescale != 1.0 || arguments.postscale != 1.0)) {
    return Status::InvalidArgument(what +
                                   ": prescale_factor and postscale_factor must be 1 for "
                                   "dtype bool, got " +
                                   std::to_string(arguments.prescale) + " and " +
                                   std::to_string(arguments.postscale));
  }
  return Status::Ok();
}

// WireFormat: what float32 travels as (compression); the numbers are part of the Python contract.

enum class WireFormat : int { kAsIs = 0, kFloat16 = 1, kBfloat16 = 2 };

// Throws StatusError with kInvalidArgument for numbers of no format.
inline WireFormat ToWireFormat(int number) {
  if (number < 0 || number > 2) {
    throw StatusError(Status::InvalidArgument("compression " + std::to_string(number) +
                                              " is unknown, expected 0, 1 or 2"));
  }
  return static_cast<WireFormat>(number);
}

// The engine casts into a buffer that stays: larger tensors are cast by torch, before.
inline constexpr int64_t kMostCastElements = int64_t{1} << 24;

// The type in which the engine reduces `dtype`: it can cast float32 on the way.
inline DataType NarrowTypeOf(WireFormat format, DataType dtype) {
  if (format == WireFormat::kAsIs || dtype != DataType::kFloat32) return dtype;
  return format == WireFormat::kFloat16 ? DataType::kFloat16 : DataType::kBfloat16;
}

}  // namespace mydist
