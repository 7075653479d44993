#include "kernels/scale.h"

#include "kernels/simd/simd_path.h"

namespace mydist {
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
                               .divisor = factor.divisor,
                               .streams = false});
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
