// ConvertElements: the arithmetic of Device::Convert for a few elements in registers. Pure; run by
// the GPU's threads, and by tests on the host: the bits are those of ScaleElements and element.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/conversion.h"
#include "kernels/element.h"

// All indices into arrays that live in registers must be known to the compiler.
#if defined(__CUDA_ARCH__)
#define MYDIST_UNROLL _Pragma("unroll")
#else
#define MYDIST_UNROLL
#endif

namespace mydist::cuda {

// One byte of an element that is only copied.
struct RawByte {
  uint8_t value;
};

// × multiplier ÷ divisor, with what can be known beforehand.
struct ElementScaling {
  double multiplier = 1.0;
  double divisor = 1.0;
  double quotient = 1.0;
  float narrow_quotient = 1.0f;
  bool is_one = true;
  bool is_narrow = true;    // The quotient is a float32.
  bool is_quotient = true;  // Multiplying by the quotient gives the bits of both steps.
};

inline ElementScaling ScalingOf(const Factor& factor) {
  const auto divisor = static_cast<double>(factor.divisor);
  const double quotient = factor.multiplier / divisor;
  const auto narrow = static_cast<float>(quotient);
  const bool is_power_of_two = (factor.divisor & (factor.divisor - 1)) == 0;
  return {.multiplier = factor.multiplier,
          .divisor = divisor,
          .quotient = quotient,
          .narrow_quotient = narrow,
          .is_one = factor.IsOne(),
          .is_narrow = static_cast<double>(narrow) == quotient,
          .is_quotient = factor.divisor == 1 || (factor.multiplier == 1.0 && is_power_of_two)};
}

// The number that an element is computed with: float64 for float64 and integers, else float32.
MYDIST_ALWAYS_INLINE float Widen(float value) { return value; }
MYDIST_ALWAYS_INLINE float Widen(Bfloat16 value) { return Bfloat16ToFloat(value.bits); }
MYDIST_ALWAYS_INLINE float Widen(Half value) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  // Exact but for NaN, of which the instruction knows one only.
  const uint32_t magnitude = value.bits & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t nan = sign | 0x7fc00000u | (magnitude & 0x3ffu) << 13;
  return magnitude > 0x7c00u ? __builtin_bit_cast(float, nan) : wide;
#else
  return HalfToFloat(value.bits);
#endif
}
template <typename T>
MYDIST_ALWAYS_INLINE double Widen(T value) {
  return static_cast<double>(value);
}

// The element that a number is stored as.
MYDIST_ALWAYS_INLINE void Narrow(float number, float& output) { output = number; }
MYDIST_ALWAYS_INLINE void Narrow(float number, Bfloat16& output) {
  output.bits = FloatToBfloat16(number);
}
MYDIST_ALWAYS_INLINE void Narrow(float number, Half& output) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(output.bits) : "f"(number));
  const uint32_t bits = __builtin_bit_cast(uint32_t, number);
  const uint32_t nan = (bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu);
  if (number != number) output.bits = static_cast<uint16_t>(nan);
#else
  output.bits = FloatToHalf(number);
#endif
}
MYDIST_ALWAYS_INLINE void Narrow(double number, double& output) { output = number; }
template <typename T>
MYDIST_ALWAYS_INLINE void Narrow(double number, T& output) {
  output = TruncateSaturated<T>(number);
}

// The one NaN of computed numbers.
MYDIST_ALWAYS_INLINE float Canonical(float value) {
  return value != value ? __builtin_bit_cast(float, 0x7fc00000u) : value;
}
MYDIST_ALWAYS_INLINE double Canonical(double value) {
  return value != value ? __builtin_bit_cast(double, uint64_t{0x7ff8000000000000u}) : value;
}

// In float64 and rounded once. A product of two float32 is exact in float64, so one multiplication
// in float32 rounds to the same bits.
template <int kCount>
MYDIST_ALWAYS_INLINE void ScaleNumbers(float (&numbers)[kCount], const ElementScaling& scaling) {
  if (scaling.is_narrow) {
    MYDIST_UNROLL for (int j = 0; j < kCount; ++j) {
      numbers[j] = Canonical(numbers[j] * scaling.narrow_quotient);
    }
  } else {
    MYDIST_UNROLL for (int j = 0; j < kCount; ++j) {
      numbers[j] =
          Canonical(static_cast<float>(static_cast<double>(numbers[j]) * scaling.quotient));
    }
  }
}

template <int kCount>
MYDIST_ALWAYS_INLINE void ScaleNumbers(double (&numbers)[kCount], const ElementScaling& scaling) {
  if (scaling.is_quotient) {
    MYDIST_UNROLL for (int j = 0; j < kCount; ++j) {
      numbers[j] = Canonical(numbers[j] * scaling.quotient);
    }
  } else {
    MYDIST_UNROLL for (int j = 0; j < kCount; ++j) {
      numbers[j] = Canonical(numbers[j] * scaling.multiplier / scaling.divisor);
    }
  }
}

// output[j] = source[j] × factor. Between float32 and 16-bit floats with or without a factor; of
// one type into itself with a factor only. Complex numbers come as their parts.
template <typename From, typename To, int kCount>
MYDIST_ALWAYS_INLINE void ConvertElements(const From (&source)[kCount], To (&output)[kCount],
                                          const ElementScaling& scaling) {
  if constexpr (std::is_same_v<From, RawByte>) {
    __builtin_memcpy(output, source, sizeof(output));  // A loop would take words apart.
  } else {
    decltype(Widen(From{})) numbers[kCount];
    MYDIST_UNROLL for (int j = 0; j < kCount; ++j) numbers[j] = Widen(source[j]);
    if (!scaling.is_one) ScaleNumbers(numbers, scaling);
    MYDIST_UNROLL for (int j = 0; j < kCount; ++j) Narrow(numbers[j], output[j]);
  }
}

}  // namespace mydist::cuda
