// Element: the C++ type behind each DataType inside the kernels, and the loops' common ground.
// Private to kernels/ and algorithms/. 16-bit floats and complex numbers are plain structs: all
// arithmetic on them is spelled out in the kernels.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "base/export.h"
#include "base/status.h"

// The loop's iterations are independent although the compiler cannot see it: pointers are either
// exactly equal or do not overlap.
#if defined(__clang__)
// A loop that cannot be vectorised for this CPU is slower, not wrong.
#pragma clang diagnostic ignored "-Wpass-failed"
#define MYDIST_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define MYDIST_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace mydist {

struct Half {
  uint16_t bits;
};

struct Bfloat16 {
  uint16_t bits;
};

struct Bool {
  uint8_t value;  // 0 is false; results are 0 or 1.
};

template <typename T>
struct Complex {
  T real;
  T imaginary;
};

// Calls visitor(Element{}) with the element type of `dtype`, which is none of 8-bit floats.
template <typename Visitor>
void VisitElement(DataType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DataType::kUint8:
      return visitor(uint8_t{});
    case DataType::kInt8:
      return visitor(int8_t{});
    case DataType::kInt16:
      return visitor(int16_t{});
    case DataType::kInt32:
      return visitor(int32_t{});
    case DataType::kInt64:
      return visitor(int64_t{});
    case DataType::kFloat16:
      return visitor(Half{});
    case DataType::kBfloat16:
      return visitor(Bfloat16{});
    case DataType::kFloat32:
      return visitor(float{});
    case DataType::kFloat64:
      return visitor(double{});
    case DataType::kBool:
      return visitor(Bool{});
    case DataType::kComplex64:
      return visitor(Complex<float>{});
    case DataType::kComplex128:
      return visitor(Complex<double>{});
    case DataType::kFloat8E4m3:
    case DataType::kFloat8E5m2:
      break;  // Nothing is computed with them.
  }
  MYDIST_CHECK(false);
}

// The dtype whose element type is T.
template <typename T>
constexpr DataType DataTypeOf() {
  if constexpr (std::is_same_v<T, uint8_t>) return DataType::kUint8;
  if constexpr (std::is_same_v<T, int8_t>) return DataType::kInt8;
  if constexpr (std::is_same_v<T, int16_t>) return DataType::kInt16;
  if constexpr (std::is_same_v<T, int32_t>) return DataType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return DataType::kInt64;
  if constexpr (std::is_same_v<T, Half>) return DataType::kFloat16;
  if constexpr (std::is_same_v<T, Bfloat16>) return DataType::kBfloat16;
  if constexpr (std::is_same_v<T, float>) return DataType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DataType::kFloat64;
  if constexpr (std::is_same_v<T, Complex<float>>) return DataType::kComplex64;
  if constexpr (std::is_same_v<T, Complex<double>>) return DataType::kComplex128;
  if constexpr (std::is_same_v<T, Bool>) return DataType::kBool;
}

inline const uint8_t* AsBytes(const void* memory) { return static_cast<const uint8_t*>(memory); }
inline uint8_t* AsBytes(void* memory) { return static_cast<uint8_t*>(memory); }

// Null stays null: empty tensors have no memory to point into.
template <typename T>
T* Advance(T* memory, int64_t count) {
  return memory == nullptr ? nullptr : memory + count;
}

// memcpy that accepts null pointers when there is nothing to copy, and equal ones.
inline void CopyBytes(void* output, const void* source, int64_t bytes) {
  if (bytes > 0 && output != source) std::memcpy(output, source, static_cast<size_t>(bytes));
}

}  // namespace mydist

// Slices: which rank owns which part of a tensor. Pure index maths, 64-bit, the same on every rank.

namespace mydist {

struct Slice {
  int64_t offset = 0;  // In elements (or bytes, or rows: whatever the caller splits).
  int64_t count = 0;

  bool operator==(const Slice&) const = default;
};

// Slice `index` of `count` elements split over `parts`: even up to one element when small. When
// every part has at least kAlignFromBytes, boundaries fall on multiples of 64 bytes from the start,
// so that no two ranks reduce into one cache line.
inline constexpr int64_t kAlignFromBytes = 4096;
Slice EvenSlice(int64_t count, int64_t element_bytes, int parts, int index);

// The part of `slice` that round `round` works on, when every round takes at most `limit` elements;
// empty when the slice is used up.
Slice RoundOf(const Slice& slice, int64_t limit, int64_t round);

// One after the other, as long as `counts` say.
void SplitByCounts(std::span<const int64_t> counts, std::vector<Slice>& slices);

// Rounds needed for the longest of `slices`.
int64_t RoundCount(std::span<const Slice> slices, int64_t limit);

// Rows each of `parts` ranks gets of a tensor with `rows` rows (reducescatter): the first
// rows % parts ranks get one more.
MYDIST_EXPORT std::vector<int64_t> ScatterRowCounts(int64_t rows, int parts);

// Sum of the counts before `index`.
MYDIST_EXPORT int64_t OffsetOf(std::span<const int64_t> counts, int index);
MYDIST_EXPORT int64_t Total(std::span<const int64_t> counts);

}  // namespace mydist

// Half: float16 and bfloat16 to and from float32; every sum of 16-bit numbers passes through here.
// Pure. Narrowing rounds to nearest, ties to even; NaN stays a (quiet) NaN. The block functions use
// the CPU's own instructions when it has them (kernels/simd) and are bit-identical to the scalar
// ones.

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

// Toward zero; what does not fit becomes the end of the type, NaN becomes 0.
template <typename T>
MYDIST_ALWAYS_INLINE T TruncateSaturated(double value) {
  constexpr bool kIsSigned = std::is_signed_v<T>;
  constexpr int kValueBits = static_cast<int>(sizeof(T)) * 8 - (kIsSigned ? 1 : 0);
  constexpr auto kMax = static_cast<T>(~uint64_t{0} >> (64 - kValueBits));
  constexpr auto kMin = static_cast<T>(kIsSigned ? -kMax - 1 : 0);
  // As a double the largest int64 is 2^63, one more than fits: hence >=.
  if (value >= static_cast<double>(kMax)) return kMax;
  if (value <= static_cast<double>(kMin)) return kMin;
  return value != value ? T{0} : static_cast<T>(value);
}

// `count` numbers each; the memory does not overlap.
void WidenHalf(const uint16_t* source, float* output, int64_t count);
void NarrowHalf(const float* source, uint16_t* output, int64_t count);
void WidenBfloat16(const uint16_t* source, float* output, int64_t count);
void NarrowBfloat16(const float* source, uint16_t* output, int64_t count);

}  // namespace mydist
