#include "kernels/adasum_math.h"

#include "kernels/element.h"

namespace mydist {
namespace {

// Several sums at a time, so that the CPU need not wait for one addition to begin the next; always
// as many, since the order of additions decides the bits.
constexpr int64_t kLaneCount = 8;

struct Lanes {
  double values[kLaneCount] = {};

  double Sum() const {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
};

template <typename T>
DotProducts SumProducts(const T* left, const T* right, int64_t count) {
  Lanes left_right;
  Lanes left_left;
  Lanes right_right;
  for (int64_t begin = 0; begin < count; begin += kLaneCount) {
    const int64_t lane_count = count - begin < kLaneCount ? count - begin : kLaneCount;
    for (int64_t lane = 0; lane < lane_count; ++lane) {
      const auto a = static_cast<double>(left[begin + lane]);
      const auto b = static_cast<double>(right[begin + lane]);
      left_right.values[lane] += a * b;
      left_left.values[lane] += a * a;
      right_right.values[lane] += b * b;
    }
  }
  return {left_right.Sum(), left_left.Sum(), right_right.Sum()};
}

template <typename T>
void Combine(T* left, const T* right, int64_t count, const AdasumFactors& factors) {
  MYDIST_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) {
    left[i] = static_cast<T>(static_cast<double>(left[i]) * factors.left +
                             static_cast<double>(right[i]) * factors.right);
  }
}

double FactorOf(double product, double square) {
  return square == 0 ? 1.0 : 1.0 - product / (2.0 * square);
}

}  // namespace

DotProducts& DotProducts::operator+=(const DotProducts& other) {
  left_right += other.left_right;
  left_left += other.left_left;
  right_right += other.right_right;
  return *this;
}

DotProducts DotProductsOf(const float* left, const float* right, int64_t count) {
  return SumProducts(left, right, count);
}

DotProducts DotProductsOf(const double* left, const double* right, int64_t count) {
  return SumProducts(left, right, count);
}

AdasumFactors FactorsOf(const DotProducts& dots) {
  return {FactorOf(dots.left_right, dots.left_left), FactorOf(dots.left_right, dots.right_right)};
}

void CombineVectors(float* left, const float* right, int64_t count, const AdasumFactors& factors) {
  Combine(left, right, count, factors);
}

void CombineVectors(double* left, const double* right, int64_t count,
                    const AdasumFactors& factors) {
  Combine(left, right, count, factors);
}

}  // namespace mydist
