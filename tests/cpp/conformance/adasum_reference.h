// AdasumReference: the published formula (Maleki et al. 2020, arXiv:2006.02924), taken literally in
// float64, over a binary tree of ranks in rank order; a last block without a neighbour passes on.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "conformance/reduction_reference.h"

namespace mydist::testing {

// A vector, and for each element what its rounding errors are relative to.
struct AdasumVector {
  std::vector<double> values;
  std::vector<double> magnitudes;
};

inline double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline AdasumVector AdasumOfPair(const AdasumVector& a, const AdasumVector& b) {
  const double product = Dot(a.values, b.values);
  const double a_squared = Dot(a.values, a.values);
  const double b_squared = Dot(b.values, b.values);
  const double a_factor = a_squared == 0 ? 1 : 1 - product / (2 * a_squared);
  const double b_factor = b_squared == 0 ? 1 : 1 - product / (2 * b_squared);
  AdasumVector result;
  for (size_t i = 0; i < a.values.size(); ++i) {
    result.values.push_back(a_factor * a.values[i] + b_factor * b.values[i]);
    result.magnitudes.push_back(std::abs(a_factor) * a.magnitudes[i] +
                                std::abs(b_factor) * b.magnitudes[i]);
  }
  return result;
}

// Halves the number of vectors until one is left: recursion over levels, unlike the product's.
inline AdasumVector AdasumOf(const std::vector<AdasumVector>& vectors) {
  if (vectors.size() == 1) return vectors[0];
  std::vector<AdasumVector> next;
  for (size_t i = 0; i + 1 < vectors.size(); i += 2) {
    next.push_back(AdasumOfPair(vectors[i], vectors[i + 1]));
  }
  if (vectors.size() % 2 == 1) next.push_back(vectors.back());
  return AdasumOf(next);
}

inline AdasumVector ExpectedAdasum(const std::vector<Elements>& inputs,
                                   const Reduction& reduction) {
  std::vector<AdasumVector> vectors;
  for (const Elements& input : inputs) {
    AdasumVector& vector = vectors.emplace_back();
    for (int64_t i = 0; i < input.count(); ++i) {
      vector.values.push_back(NumberAt(input, i).real() * reduction.prescale);
      vector.magnitudes.push_back(std::abs(vector.values.back()));
    }
  }
  AdasumVector result = AdasumOf(vectors);
  for (double& value : result.values) value *= reduction.postscale;
  for (double& magnitude : result.magnitudes) magnitude *= std::abs(reduction.postscale);
  return result;
}

inline void ExpectAdasum(const Elements& got, const std::vector<Elements>& inputs,
                         const Reduction& reduction) {
  const AdasumVector expected = ExpectedAdasum(inputs, reduction);
  const Precision precision = PrecisionOf(reduction.dtype);
  double norm = 0;  // An error of the factors is relative to the whole vectors.
  for (const double magnitude : expected.magnitudes) norm = std::max(norm, magnitude);
  int wrong = 0;
  for (int64_t i = 0; i < got.count() && wrong < 3; ++i) {
    const double value = expected.values[static_cast<size_t>(i)];
    const double error = 32 * precision.fold * norm + precision.store * std::abs(value);
    const double number = NumberAt(got, i).real();
    if (std::abs(number - value) <= error) continue;
    ++wrong;
    ADD_FAILURE() << "Adasum of " << DataTypeName(reduction.dtype) << " over " << inputs.size()
                  << " ranks: element " << i << " of " << got.count() << " is " << number
                  << ", expected " << value;
  }
}

}  // namespace mydist::testing
