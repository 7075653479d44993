// AdasumMath: the formula of adaptive summation for one pair of vectors (see adasum.h). Pure; the
// same bits for the same elements, wherever they lie.
#pragma once

#include <cstdint>

namespace mydist {

// The products of two vectors (left, right), in float64. They travel between ranks as they are.
struct DotProducts {
  double left_right = 0;
  double left_left = 0;
  double right_right = 0;

  DotProducts& operator+=(const DotProducts& other);
};

struct AdasumFactors {
  double left;
  double right;
};

// Sums over `count` elements; 0 elements give zeros.
DotProducts DotProductsOf(const float* left, const float* right, int64_t count);
DotProducts DotProductsOf(const double* left, const double* right, int64_t count);

// A zero vector leaves the other as it is: both factors are 1.
AdasumFactors FactorsOf(const DotProducts& dots);

// left[i] = left[i] × factors.left + right[i] × factors.right, in float64, rounded once. No
// overlap.
void CombineVectors(float* left, const float* right, int64_t count, const AdasumFactors& factors);
void CombineVectors(double* left, const double* right, int64_t count, const AdasumFactors& factors);

}  // namespace mydist
