// Conversion: elements copied, scaled or cast from one place to another, many pieces at once: pack,
// unpack and scale (fuse). Pure. Here for host memory; for a GPU see memory/device/device.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "kernels/scale.h"

namespace mydist {

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

}  // namespace mydist
