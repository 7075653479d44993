// Scale: multiplies elements by a factor; part of reducing (prescale, postscale, average).
// Pure. Floating point: computed in float64 and rounded once to float32 (the 16-bit types: from
// there once more to their own). Integers: computed in float64, truncated toward zero, saturated at
// the ends of the type, NaN gives 0; so int64 beyond 2^53 loses its low bits. Complex × real.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/element.h"

namespace mydist {

struct Factor {
  double multiplier = 1.0;
  int64_t divisor = 1;

  bool IsOne() const { return multiplier == 1.0 && divisor == 1; }
};

// output[i] = source[i] × multiplier ÷ divisor. `output` is `source` or does not overlap it.
void ScaleElements(const float* source, float* output, int64_t count, const Factor& factor);
void ScaleElements(const double* source, double* output, int64_t count, const Factor& factor);
void ScaleElements(const uint8_t* source, uint8_t* output, int64_t count, const Factor& factor);
void ScaleElements(const int8_t* source, int8_t* output, int64_t count, const Factor& factor);
void ScaleElements(const int16_t* source, int16_t* output, int64_t count, const Factor& factor);
void ScaleElements(const int32_t* source, int32_t* output, int64_t count, const Factor& factor);
void ScaleElements(const int64_t* source, int64_t* output, int64_t count, const Factor& factor);
void ScaleElements(const Complex<float>* source, Complex<float>* output, int64_t count,
                   const Factor& factor);
void ScaleElements(const Complex<double>* source, Complex<double>* output, int64_t count,
                   const Factor& factor);

// A bool cannot be scaled: aborts. Reduction::Validate keeps users away from here.
void ScaleElements(const Bool* source, Bool* output, int64_t count, const Factor& factor);

}  // namespace mydist
