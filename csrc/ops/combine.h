// Combine: one step of a reduction, element by element; private to ops/.
// Sum and Product of integers wrap around. Min and Max give NaN when either side is NaN, as torch
// does. For Bool, Sum and Max are "or", Product and Min are "and".
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/element.h"
#include "world/collective_op.h"

namespace mydist {

// Unsigned and at least 32 bits wide: narrower types would be promoted to int, whose overflow is
// undefined.
template <typename T>
using WrappingType = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <ReduceOp kOp, typename T>
T Combine(T a, T b) {
  if constexpr (kOp == ReduceOp::kMin) {
    return static_cast<bool>(static_cast<int>(b < a) | static_cast<int>(b != b)) ? b : a;
  } else if constexpr (kOp == ReduceOp::kMax) {
    return static_cast<bool>(static_cast<int>(b > a) | static_cast<int>(b != b)) ? b : a;
  } else if constexpr (std::is_integral_v<T>) {
    const auto left = static_cast<WrappingType<T>>(a);
    const auto right = static_cast<WrappingType<T>>(b);
    return static_cast<T>(kOp == ReduceOp::kSum ? left + right : left * right);
  } else {
    return kOp == ReduceOp::kSum ? a + b : a * b;
  }
}

template <ReduceOp kOp>
Bool Combine(Bool a, Bool b) {
  constexpr bool kOr = kOp == ReduceOp::kSum || kOp == ReduceOp::kMax;
  const auto left = static_cast<uint8_t>(a.value != 0);
  const auto right = static_cast<uint8_t>(b.value != 0);
  return {static_cast<uint8_t>(kOr ? left | right : left & right)};
}

template <ReduceOp kOp, typename T>
Complex<T> Combine(Complex<T> a, Complex<T> b) {
  static_assert(kOp == ReduceOp::kSum || kOp == ReduceOp::kProduct);
  if constexpr (kOp == ReduceOp::kSum) {
    return {a.real + b.real, a.imaginary + b.imaginary};
  } else {
    return {a.real * b.real - a.imaginary * b.imaginary,
            a.real * b.imaginary + a.imaginary * b.real};
  }
}

// Whether the kernels exist: complex numbers have no order.
template <ReduceOp kOp, typename T>
inline constexpr bool kCombines = true;
template <typename T>
inline constexpr bool kCombines<ReduceOp::kMin, Complex<T>> = false;
template <typename T>
inline constexpr bool kCombines<ReduceOp::kMax, Complex<T>> = false;

// output[i] = a[i] op b[i]; `output` may be `a` or `b`, otherwise nothing overlaps.
template <ReduceOp kOp, typename T>
void CombineElements(const T* a, const T* b, T* output, int64_t count) {
  MYDIST_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) output[i] = Combine<kOp>(a[i], b[i]);
}

}  // namespace mydist
