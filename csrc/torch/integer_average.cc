#include "torch/integer_average.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/div.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <limits>

#include "torch/gpu_order.h"
#include "torch/tensor_adapter.h"

namespace mydist {
namespace {

// Autograd and version counters ignore these operations, and inference tensors may be written in
// any mode, as by the engine.
using Unrecorded = at::AutoDispatchBelowADInplaceOrView;

constexpr int64_t kLowerBits = (int64_t{1} << 32) - 1;
constexpr double kUpperUnit = 4294967296.0;  // Of the upper half, in those of the lower one.

struct RangeOfDtype {
  double lowest;
  double highest;
};

RangeOfDtype RangeOf(at::ScalarType dtype) {
  if (dtype == at::kByte) return {0.0, 255.0};
  const double half = std::ldexp(1.0, static_cast<int>(8 * c10::elementSize(dtype)) - 1);
  return {-half, half - 1.0};  // The highest int64 is rounded to 2^63.
}

// Floating point as int64, truncated toward zero and saturated at the ends of `dtype`.
at::Tensor Truncated(const at::Tensor& scaled, at::ScalarType dtype) {
  const RangeOfDtype range = RangeOf(dtype);
  if (dtype != at::kLong) return scaled.clamp(range.lowest, range.highest).to(at::kLong);
  // 2^63 itself must not be cast.
  const double below = std::nextafter(range.highest, 0.0);
  return scaled.clamp(range.lowest, below)
      .to(at::kLong)
      .masked_fill_(scaled.gt(below), std::numeric_limits<int64_t>::max());
}

at::Tensor Halves(const at::Tensor& numbers) {
  return at::stack({numbers.bitwise_right_shift(32), numbers.bitwise_and(kLowerBits)}, -1);
}

// (upper · 2^32 + lower) ÷ divisor. All of it fits: the divisor is less than 2^31, and so is the
// carry of that many lower halves.
at::Tensor Divided(const at::Tensor& upper, const at::Tensor& lower, int64_t divisor) {
  const at::Tensor whole = upper + lower.bitwise_right_shift(32);
  const at::Tensor left = whole.remainder(divisor);  // Not negative, as the divisor is not.
  const at::Tensor rest = left * (kLowerBits + 1) + lower.bitwise_and(kLowerBits);
  at::Tensor floor = at::div(whole, divisor, "floor") * (kLowerBits + 1);
  floor += at::div(rest, divisor, "floor");
  // The floor is one below what a negative quotient with a rest truncates to.
  return floor += floor.lt(0).logical_and_(rest.remainder(divisor).ne(0));
}

}  // namespace

std::optional<IntegerAverage> IntegerAverage::Of(const Request& request) {
  if (!IsIntegerAverage(request.op, request.reduce_op, request.dtype)) return std::nullopt;
  return IntegerAverage{.dtype = ToScalarType(request.dtype),
                        .prescale = request.prescale,
                        .postscale = request.postscale};
}

at::Tensor IntegerAverage::Carry(const at::Tensor& tensor) const {
  const Unrecorded unrecorded;
  at::Tensor numbers = tensor;
  if (prescale != 1.0) numbers = Truncated(tensor.to(at::kDouble) * prescale, dtype);
  if (dtype == at::kLong) return Halves(numbers);
  return numbers.is_same(tensor) ? tensor.to(at::kLong) : numbers;
}

void IntegerAverage::Finish(const at::Tensor& sum, int64_t divisor,
                            const at::Tensor& target) const {
  const Unrecorded unrecorded;
  const bool has_halves = dtype == at::kLong;
  const at::Tensor upper = has_halves ? sum.select(-1, 0) : sum;
  const at::Tensor lower = has_halves ? sum.select(-1, 1) : at::Tensor();
  if (postscale != 1.0) {
    at::Tensor total = upper.to(at::kDouble);
    if (has_halves) total = total * kUpperUnit + lower.to(at::kDouble);
    target.copy_(Truncated(total * postscale / static_cast<double>(divisor), dtype));
  } else {
    target.copy_(has_halves ? Divided(upper, lower, divisor) : sum.div_(divisor, "trunc"));
  }
}

at::Tensor IntegerAverage::Finish(const at::Tensor& sum, int64_t divisor) const {
  const at::IntArrayRef sizes =
      dtype == at::kLong ? sum.sizes().slice(0, sum.dim() - 1) : sum.sizes();
  const at::Tensor result = EmptyOn(sum.device(), sizes, dtype);
  Finish(sum, divisor, result);
  return result;
}

}  // namespace mydist
