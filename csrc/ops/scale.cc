#include "ops/scale.h"

#include <limits>

namespace mydist {
namespace {

template <typename T>
T TruncateSaturated(double value) {
  // As a double the largest int64 is 2^63, one more than fits: hence >=.
  constexpr double kHighest = static_cast<double>(std::numeric_limits<T>::max());
  constexpr double kLowest = static_cast<double>(std::numeric_limits<T>::min());
  if (value >= kHighest) return std::numeric_limits<T>::max();
  if (value <= kLowest) return std::numeric_limits<T>::min();
  return value != value ? T{0} : static_cast<T>(value);
}

template <typename T>
void ScaleIntegers(const T* source, T* output, int64_t count, const Factor& factor) {
  const double multiplier = factor.multiplier;
  const double divisor = static_cast<double>(factor.divisor);
  for (int64_t i = 0; i < count; ++i) {
    output[i] = TruncateSaturated<T>(static_cast<double>(source[i]) * multiplier / divisor);
  }
}

}  // namespace

void ScaleElements(const float* source, float* output, int64_t count, const Factor& factor) {
  // float64 has bits to spare: one multiplication by the quotient rounds like a true division
  // whenever the result is a float32.
  const double multiplier = factor.multiplier / static_cast<double>(factor.divisor);
  MYDIST_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) {
    output[i] = static_cast<float>(static_cast<double>(source[i]) * multiplier);
  }
}

void ScaleElements(const double* source, double* output, int64_t count, const Factor& factor) {
  const double multiplier = factor.multiplier;
  const double divisor = static_cast<double>(factor.divisor);
  MYDIST_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) output[i] = source[i] * multiplier / divisor;
}

void ScaleElements(const uint8_t* source, uint8_t* output, int64_t count, const Factor& factor) {
  ScaleIntegers(source, output, count, factor);
}

void ScaleElements(const int8_t* source, int8_t* output, int64_t count, const Factor& factor) {
  ScaleIntegers(source, output, count, factor);
}

void ScaleElements(const int16_t* source, int16_t* output, int64_t count, const Factor& factor) {
  ScaleIntegers(source, output, count, factor);
}

void ScaleElements(const int32_t* source, int32_t* output, int64_t count, const Factor& factor) {
  ScaleIntegers(source, output, count, factor);
}

void ScaleElements(const int64_t* source, int64_t* output, int64_t count, const Factor& factor) {
  ScaleIntegers(source, output, count, factor);
}

void ScaleElements(const Complex<float>* source, Complex<float>* output, int64_t count,
                   const Factor& factor) {
  ScaleElements(&source->real, &output->real, 2 * count, factor);
}

void ScaleElements(const Complex<double>* source, Complex<double>* output, int64_t count,
                   const Factor& factor) {
  ScaleElements(&source->real, &output->real, 2 * count, factor);
}

void ScaleElements(const Bool*, Bool*, int64_t, const Factor&) { MYDIST_CHECK(false); }

}  // namespace mydist
