// Combine, scale and canonicalize vectors of lanes; part of kernels_*.cc only, once for each path.
// Sum and Product of integers wrap around. Min and Max give NaN when either side is NaN, as torch
// does, and the first of equal ones. For Bool, Sum and Max are "or", Product and Min are "and".
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/simd/lanes.h"
#include "world/collective_op.h"

namespace mydist::simd::MYDIST_SIMD_PATH {
namespace {

template <ReduceOp kOp, typename T>
struct Combine {
  using Wide = typename Lanes<T>::Wide;
  MYDIST_ALWAYS_INLINE Wide operator()(const Wide& a, const Wide& b) const {
    if constexpr (kOp == ReduceOp::kMin) {
      return ((b < a) | (b != b)) ? b : a;
    } else if constexpr (kOp == ReduceOp::kMax) {
      return ((b > a) | (b != b)) ? b : a;
    } else if constexpr (std::is_integral_v<T>) {
      using Wrapping = Vector<std::make_unsigned_t<T>>;
      const auto left = BitsAs<Wrapping>(a);
      const auto right = BitsAs<Wrapping>(b);
      return BitsAs<Wide>(kOp == ReduceOp::kSum ? left + right : left * right);
    } else {
      return kOp == ReduceOp::kSum ? a + b : a * b;
    }
  }
};

template <ReduceOp kOp>
struct Combine<kOp, Bool> {
  using Wide = Lanes<Bool>::Wide;
  MYDIST_ALWAYS_INLINE Wide operator()(const Wide& a, const Wide& b) const {
    constexpr bool kOr = kOp == ReduceOp::kSum || kOp == ReduceOp::kMax;
    return kOr ? a | b : a & b;
  }
};

// Complex numbers have no order, and their sums are sums of parts. Subtracting is adding with the
// other sign: from differences beside sums GCC makes fused operations even where it must not.
template <typename T>
struct Combine<ReduceOp::kProduct, Complex<T>> {
  using Wide = Vector<T>;
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  MYDIST_ALWAYS_INLINE Wide operator()(const Wide& a, const Wide& b) const {
    Wide real;
    Wide imaginary;
    Wide swapped;
    Vector<Bits> signs = {};
    for (int i = 0; i < Lanes<T>::kCount; i += 2) {
      real[i] = real[i + 1] = a[i];
      imaginary[i] = imaginary[i + 1] = a[i + 1];
      swapped[i] = b[i + 1];
      swapped[i + 1] = b[i];
      signs[i] = BitsAs<Bits>(T{-0.0});
    }
    return real * b + BitsAs<Wide>(BitsAs<Vector<Bits>>(imaginary * swapped) ^ signs);
  }
};

// As many float64 as a vector has float32: two vectors.
using WideDoubles = VectorOf<double, kFloatCount>::Type;

// × multiplier ÷ divisor, with what can be known beforehand.
struct Scaling {
  WideDoubles quotients;  // The quotient in every lane: spreading it out is slow for two vectors.
  double multiplier;
  double divisor;
  double quotient;
  float narrow_quotient;
  bool is_one;
  bool is_narrow;    // The quotient is a float32.
  bool is_quotient;  // Multiplying by the quotient gives the bits of multiplying and dividing.
};

MYDIST_ALWAYS_INLINE Scaling ScalingBy(double multiplier, int64_t divisor) {
  const auto divided = static_cast<double>(divisor);
  const double quotient = multiplier / divided;
  const auto narrow = static_cast<float>(quotient);
  const bool is_power_of_two = (divisor & (divisor - 1)) == 0;
  WideDoubles quotients = {};
  for (int i = 0; i < kFloatCount; ++i) quotients[i] = quotient;
  return {.quotients = quotients,
          .multiplier = multiplier,
          .divisor = divided,
          .quotient = quotient,
          .narrow_quotient = narrow,
          .is_one = multiplier == 1.0 && divisor == 1,
          .is_narrow = static_cast<double>(narrow) == quotient,
          .is_quotient = divisor == 1 || (multiplier == 1.0 && is_power_of_two)};
}

template <typename T>
struct Scale {
  using Wide = typename Lanes<T>::Wide;
  static_assert(std::is_integral_v<T>);
  // Not inlined: rare, and big.
  [[gnu::noinline]] static void Numbers(T* numbers, const Scaling& scaling) {
    for (int i = 0; i < Lanes<T>::kCount; ++i) {
      const double scaled = static_cast<double>(numbers[i]) * scaling.multiplier / scaling.divisor;
      numbers[i] = TruncateSaturated<T>(scaled);
    }
  }
  MYDIST_ALWAYS_INLINE Wide operator()(const Wide& wide, const Scaling& scaling) const {
    T numbers[Lanes<T>::kCount];
    __builtin_memcpy(numbers, &wide, sizeof(wide));
    Numbers(numbers, scaling);
    return LoadVector<Wide>(reinterpret_cast<const char*>(numbers));
  }
};

template <>
struct Scale<float> {
  // In float64 and rounded once. A product of two float32 is exact in float64, so one
  // multiplication in float32 rounds to the same bits.
  MYDIST_ALWAYS_INLINE FloatVector operator()(const FloatVector& wide,
                                              const Scaling& scaling) const {
    if (scaling.is_narrow) return wide * scaling.narrow_quotient;
    return __builtin_convertvector(__builtin_convertvector(wide, WideDoubles) * scaling.quotients,
                                   FloatVector);
  }
};

template <>
struct Scale<double> {
  MYDIST_ALWAYS_INLINE Vector<double> operator()(const Vector<double>& wide,
                                                 const Scaling& scaling) const {
    if (scaling.is_quotient) return wide * scaling.quotient;
    return wide * scaling.multiplier / scaling.divisor;
  }
};

template <>
struct Scale<Half> : Scale<float> {};
template <>
struct Scale<Bfloat16> : Scale<float> {};

// Never called: a bool cannot be scaled.
template <>
struct Scale<Bool> {
  MYDIST_ALWAYS_INLINE Vector<uint8_t> operator()(const Vector<uint8_t>& wide,
                                                  const Scaling&) const {
    return wide;
  }
};

template <typename T>
struct Scale<Complex<T>> : Scale<T> {};

// The one NaN of computed numbers.
MYDIST_ALWAYS_INLINE Vector<float> Canonical(const Vector<float>& wide) {
  const auto nan = BitsAs<Vector<float>>(Vector<uint32_t>{} + 0x7fc00000u);
  return wide != wide ? nan : wide;
}

MYDIST_ALWAYS_INLINE Vector<double> Canonical(const Vector<double>& wide) {
  const auto nan = BitsAs<Vector<double>>(Vector<uint64_t>{} + 0x7ff8000000000000u);
  return wide != wide ? nan : wide;
}

// Integers.
template <typename V>
MYDIST_ALWAYS_INLINE V Canonical(const V& wide) {
  return wide;
}

}  // namespace
}  // namespace mydist::simd::MYDIST_SIMD_PATH
