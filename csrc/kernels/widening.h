// Widening: 16-bit floats as float32 and back, for partial sums that are folded again; private to
// ops/. Pure. Whoever narrows last rounds, once.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/half.h"

namespace mydist {

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
