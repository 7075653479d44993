// Conversion: elements copied, scaled or cast from one place to another, many pieces at once: pack,
// unpack and scale (fuse). Pure. Here for host memory; for a GPU see memory/device/device.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/element.h"

namespace mydist {

// Scale: multiplies elements by a factor; part of reducing (prescale, postscale, average).
// Pure. Floating point: computed in float64 and rounded once to float32 (the 16-bit types: from
// there once more to their own). Integers: computed in float64, truncated toward zero, saturated at
// the ends of the type, NaN gives 0; so int64 beyond 2^53 loses its low bits. Complex × real.

struct Factor {
  double multiplier = 1.0;
  int64_t divisor = 1;

  bool IsOne() const { return multiplier == 1.0 && divisor == 1; }
};

// output[i] = source[i] × multiplier ÷ divisor, of elements of `dtype`. `output` is `source` or
// does not overlap it. A bool cannot be scaled: aborts. Reduction::Validate keeps users away from
// here.
void ScaleElements(DataType dtype, const void* source, void* output, int64_t count,
                   const Factor& factor);

template <typename T>
void ScaleElements(const T* source, T* output, int64_t count, const Factor& factor) {
  ScaleElements(DataTypeOf<T>(), source, output, count, factor);
}

// Elements that lie one after the other, at any address. Pointers may be null when there are none.
struct ConvertSegment {
  const void* source = nullptr;
  void* target = nullptr;
  int64_t element_count = 0;
};
using ConvertSegments = std::vector<ConvertSegment>;

// target[i] = source[i] × factor, rounded to the target's type as ScaleElements rounds. With the
// factor 1 between equal types bytes are copied. float32 ↔ float16 and float32 ↔ bfloat16 convert;
// other pairs of different types do not exist, and a bool cannot be scaled.
struct Conversion {
  DataType from = DataType::kFloat32;
  DataType to = DataType::kFloat32;
  Factor factor{};

  bool IsCopy() const { return from == to && factor.IsOne(); }
};

// Of segments that count bytes.
inline constexpr Conversion kCopyOfBytes{.from = DataType::kUint8, .to = DataType::kUint8};

// A segment's target is its source, if the types have one size, or overlaps no segment.
void ConvertElements(std::span<const ConvertSegment> segments, const Conversion& conversion);

// Widening: 16-bit floats as float32 and back, for partial sums that are folded again. Pure. The
// last one to narrow rounds, once.

inline bool IsHalfWidth(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16;
}

// `dtype` is a 16-bit float, that of the 16-bit side. `count` elements; nothing overlaps.
inline void WidenElements(DataType dtype, const void* source, void* output, int64_t count) {
  MYDIST_CHECK(IsHalfWidth(dtype));
  const auto widen = dtype == DataType::kFloat16 ? WidenHalf : WidenBfloat16;
  if (count > 0) widen(static_cast<const uint16_t*>(source), static_cast<float*>(output), count);
}

inline void NarrowElements(DataType dtype, const void* source, void* output, int64_t count) {
  MYDIST_CHECK(IsHalfWidth(dtype));
  const auto narrow = dtype == DataType::kFloat16 ? NarrowHalf : NarrowBfloat16;
  if (count > 0) narrow(static_cast<const float*>(source), static_cast<uint16_t*>(output), count);
}

}  // namespace mydist
