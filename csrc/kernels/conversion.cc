#include "kernels/conversion.h"

#include <algorithm>
#include <array>
#include <type_traits>

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

void ScaleSegment(const ConvertSegment& segment, const Conversion& conversion) {
  VisitElement(conversion.to, [&]<typename T>(T) {
    if constexpr (sizeof(T) != sizeof(uint16_t) || std::is_integral_v<T>) {
      ScaleElements(static_cast<const T*>(segment.source), static_cast<T*>(segment.target),
                    segment.element_count, conversion.factor);
    }
  });
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
      ScaleSegment(segment, conversion);
    }
  }
}

namespace {

// A fold of one source.
void ScaleAs(DataType dtype, const void* source, void* output, int64_t count,
             const Factor& factor) {
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

}  // namespace

void ScaleElements(const float* source, float* output, int64_t count, const Factor& factor) {
  ScaleAs(DataType::kFloat32, source, output, count, factor);
}

void ScaleElements(const double* source, double* output, int64_t count, const Factor& factor) {
  ScaleAs(DataType::kFloat64, source, output, count, factor);
}

void ScaleElements(const uint8_t* source, uint8_t* output, int64_t count, const Factor& factor) {
  ScaleAs(DataType::kUint8, source, output, count, factor);
}

void ScaleElements(const int8_t* source, int8_t* output, int64_t count, const Factor& factor) {
  ScaleAs(DataType::kInt8, source, output, count, factor);
}

void ScaleElements(const int16_t* source, int16_t* output, int64_t count, const Factor& factor) {
  ScaleAs(DataType::kInt16, source, output, count, factor);
}

void ScaleElements(const int32_t* source, int32_t* output, int64_t count, const Factor& factor) {
  ScaleAs(DataType::kInt32, source, output, count, factor);
}

void ScaleElements(const int64_t* source, int64_t* output, int64_t count, const Factor& factor) {
  ScaleAs(DataType::kInt64, source, output, count, factor);
}

void ScaleElements(const Complex<float>* source, Complex<float>* output, int64_t count,
                   const Factor& factor) {
  ScaleAs(DataType::kComplex64, source, output, count, factor);
}

void ScaleElements(const Complex<double>* source, Complex<double>* output, int64_t count,
                   const Factor& factor) {
  ScaleAs(DataType::kComplex128, source, output, count, factor);
}

void ScaleElements(const Bool*, Bool*, int64_t, const Factor&) { MYDIST_CHECK(false); }

}  // namespace mydist
