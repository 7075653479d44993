// Half: float16 and bfloat16 to and from float32; every sum of 16-bit numbers passes through here.
// Pure. Narrowing rounds to nearest, ties to even; NaN stays a (quiet) NaN. The block functions use
// the CPU's own instructions when it has them (kernels/simd) and are bit-identical to the scalar
// ones.
#pragma once

#include <cstdint>

#include "base/host_device.h"

// For code that is also compiled for CPUs with more instructions: leaves no function behind that
// the linker could take for other files.
#define MYDIST_ALWAYS_INLINE MYDIST_HOST_DEVICE inline __attribute__((always_inline))

namespace mydist {

MYDIST_ALWAYS_INLINE float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) {
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return __builtin_bit_cast(float, sign | 0x7f800000u | quiet | mantissa << 13);
  }
  if (exponent == 0) {  // Subnormal: a multiple of 2^-24, normal in float32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, magnitude));
  }
  return __builtin_bit_cast(float, sign | (exponent + 112) << 23 | mantissa << 13);
}

MYDIST_ALWAYS_INLINE uint16_t FloatToHalf(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  }
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // From 2^16 on.
  if (magnitude >= 0x38800000u) {  // From 2^-14 on: normal. A carry may well end at infinity.
    const uint32_t rebiased = magnitude - (112u << 23);
    return static_cast<uint16_t>(sign | (rebiased + 0xfffu + (rebiased >> 13 & 1u)) >> 13);
  }
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return static_cast<uint16_t>(sign);  // Below half the smallest subnormal.
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 126 - exponent;
  const uint32_t kept = mantissa >> shift;
  const uint32_t dropped = mantissa & ((1u << shift) - 1);
  const uint32_t tie = 1u << (shift - 1);
  const bool up = dropped > tie || (dropped == tie && (kept & 1u) != 0);
  return static_cast<uint16_t>(sign | (kept + (up ? 1u : 0u)));
}

MYDIST_ALWAYS_INLINE float Bfloat16ToFloat(uint16_t value) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(value) << 16);
}

MYDIST_ALWAYS_INLINE uint16_t FloatToBfloat16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? (bits >> 16 | 0x40u) : rounded);
}

// `count` numbers each; the memory does not overlap.
void WidenHalf(const uint16_t* source, float* output, int64_t count);
void NarrowHalf(const float* source, uint16_t* output, int64_t count);
void WidenBfloat16(const uint16_t* source, float* output, int64_t count);
void NarrowBfloat16(const float* source, uint16_t* output, int64_t count);

}  // namespace mydist
