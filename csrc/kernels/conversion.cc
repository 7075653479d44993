#include "kernels/conversion.h"

#include <algorithm>
#include <array>

#include "kernels/simd/simd_path.h"

namespace mydist {

namespace {

// Of 16-bit floats widened at a time: what fits into the innermost cache.
constexpr int64_t kBlockCount = 2048;

// Through float32, of which at least one side is not.
void ConvertFloats(const ConvertSegment& segment, const Conversion& conversion) {
  std::array<float, kBlockCount> block;
  const bool widens = IsHalfWidth(conversion.from);
  const bool narrows = IsHalfWidth(conversion.to);
  for (int64_t begin = 0; begin < segment.element_count; begin += kBlockCount) {
    const int64_t count = std::min(kBlockCount, segment.element_count - begin);
    const uint8_t* source = AsBytes(segment.source) + begin * SizeOf(conversion.from);
    uint8_t* target = AsBytes(segment.target) + begin * SizeOf(conversion.to);
    if (widens) WidenElements(conversion.from, source, block.data(), count);
    const auto* wide = widens ? block.data() : reinterpret_cast<const float*>(source);
    auto* scaled = narrows ? block.data() : reinterpret_cast<float*>(target);
    ScaleElements(wide, scaled, count, conversion.factor);
    if (narrows) NarrowElements(conversion.to, scaled, target, count);
  }
}

}  // namespace

void ConvertElements(std::span<const ConvertSegment> segments, const Conversion& conversion) {
  const bool has_halves = IsHalfWidth(conversion.from) || IsHalfWidth(conversion.to);
  MYDIST_CHECK(conversion.from == conversion.to || has_halves);
  for (const ConvertSegment& segment : segments) {
    if (segment.element_count == 0) continue;
    if (conversion.IsCopy()) {
      CopyBytes(segment.target, segment.source, segment.element_count * SizeOf(conversion.to));
    } else if (has_halves) {
      ConvertFloats(segment, conversion);
    } else {
      ScaleElements(conversion.to, segment.source, segment.target, segment.element_count,
                    conversion.factor);
    }
  }
}

// A fold of one source.
void ScaleElements(DataType dtype, const void* source, void* output, int64_t count,
                   const Factor& factor) {
  MYDIST_CHECK(dtype != DataType::kBool);
  if (count == 0) return;
  simd::CurrentKernels().fold({.sources = &source,
                               .source_count = 1,
                               .outputs = &output,
                               .output_count = 1,
                               .count = count,
                               .dtype = dtype,
                               .op = ReduceOp::kSum,
                               .prescale = 1.0,
                               .postscale = factor.multiplier,
                               .divisor = factor.divisor});
}

}  // namespace mydist
