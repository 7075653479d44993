#include "kernels/compress/low_rank.h"

#include <algorithm>
#include <cmath>

#include "kernels/loop.h"

namespace mydist {
namespace {

// Sums are of so many lanes, whatever the CPU has, and then of the lanes.
constexpr size_t kLanes = 32;
// A column of which less than this is left beside those before it is taken for their rounding.
constexpr double kLeastShare = 1e-6;

struct Shape {
  size_t rows, columns, rank;
};

MYDIST_LOOP void LowRankTimesLoop(const float* __restrict values, const float* __restrict residual,
                                  float factor, Shape shape, const float* __restrict q,
                                  float* __restrict p) {
  const size_t columns = shape.columns;
  const size_t whole = columns / kLanes * kLanes;
  for (size_t i = 0; i < shape.rows; ++i) {
    const float* __restrict g = values + i * columns;
    const float* __restrict e = residual + i * columns;
    for (size_t r = 0; r < shape.rank; ++r) {
      const float* __restrict by = q + r * columns;
      float lanes[kLanes] = {};
      for (size_t j = 0; j < whole; j += kLanes) {
        for (size_t l = 0; l < kLanes; ++l) lanes[l] += (g[j + l] + e[j + l] * factor) * by[j + l];
      }
      for (size_t j = whole; j < columns; ++j) lanes[j - whole] += (g[j] + e[j] * factor) * by[j];
      for (size_t half = kLanes / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      }
      p[r * shape.rows + i] = lanes[0];
    }
  }
}

MYDIST_LOOP void LowRankTransposedLoop(const float* __restrict values,
                                       const float* __restrict residual, float factor, Shape shape,
                                       const float* __restrict p, float* __restrict q) {
  const size_t columns = shape.columns;
  for (size_t j = 0; j < shape.rank * columns; ++j) q[j] = 0;
  for (size_t i = 0; i < shape.rows; ++i) {
    const float* __restrict g = values + i * columns;
    const float* __restrict e = residual + i * columns;
    for (size_t r = 0; r < shape.rank; ++r) {
      float* __restrict to = q + r * columns;
      const float by = p[r * shape.rows + i];
      for (size_t j = 0; j < columns; ++j) to[j] += (g[j] + e[j] * factor) * by;
    }
  }
}

MYDIST_LOOP void LowRankProductLoop(const float* __restrict p, const float* __restrict q,
                                    Shape shape, float scale, float* __restrict out) {
  const size_t columns = shape.columns;
  for (size_t i = 0; i < shape.rows; ++i) {
    float* __restrict to = out + i * columns;
    for (size_t r = 0; r < shape.rank; ++r) {
      const float* __restrict by = q + r * columns;
      const float share = p[r * shape.rows + i] * scale;
      if (r == 0) {
        for (size_t j = 0; j < columns; ++j) to[j] = share * by[j];
      } else {
        for (size_t j = 0; j < columns; ++j) to[j] += share * by[j];
      }
    }
  }
}

MYDIST_LOOP void LowRankKeepLoop(const float* __restrict values, float factor, Shape shape,
                                 const float* __restrict p, const float* __restrict q,
                                 float* __restrict residual) {
  const size_t columns = shape.columns;
  for (size_t i = 0; i < shape.rows; ++i) {
    const float* __restrict g = values + i * columns;
    float* __restrict e = residual + i * columns;
    for (size_t j = 0; j < columns; ++j) e[j] = g[j] + e[j] * factor;
    for (size_t r = 0; r < shape.rank; ++r) {
      const float* __restrict by = q + r * columns;
      const float share = p[r * shape.rows + i];
      for (size_t j = 0; j < columns; ++j) e[j] -= share * by[j];
    }
  }
}

MYDIST_LOOP double LowRankDotLoop(const float* __restrict a, const float* __restrict b,
                                  size_t count) {
  double lanes[kLanes] = {};
  const size_t whole = count / kLanes * kLanes;
  for (size_t j = 0; j < whole; j += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) {
      lanes[l] += static_cast<double>(a[j + l]) * static_cast<double>(b[j + l]);
    }
  }
  for (size_t j = whole; j < count; ++j) {
    lanes[j - whole] += static_cast<double>(a[j]) * static_cast<double>(b[j]);
  }
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

double NormOf(const float* column, size_t count) {
  return std::sqrt(LowRankDotLoop(column, column, count));
}

void Scale(float* column, size_t count, double by) {
  for (size_t j = 0; j < count; ++j) column[j] = static_cast<float>(column[j] * by);
}

Shape ShapeOf(int64_t rows, size_t values, size_t p) {
  const auto count = static_cast<size_t>(rows);
  return {.rows = count, .columns = values / count, .rank = p / count};
}

}  // namespace

void LowRankTimes(const LowRankMatrix& m, std::span<const float> q, std::span<float> p) {
  LowRankTimesLoop(m.values.data(), m.residual.data(), m.factor,
                   ShapeOf(m.rows, m.values.size(), p.size()), q.data(), p.data());
}

void LowRankTransposedTimes(const LowRankMatrix& m, std::span<const float> p, std::span<float> q) {
  LowRankTransposedLoop(m.values.data(), m.residual.data(), m.factor,
                        ShapeOf(m.rows, m.values.size(), p.size()), p.data(), q.data());
}

void LowRankProduct(std::span<const float> p, std::span<const float> q, int64_t rows, float scale,
                    std::span<float> out) {
  LowRankProductLoop(p.data(), q.data(), ShapeOf(rows, out.size(), p.size()), scale, out.data());
}

void LowRankKeep(std::span<const float> values, float factor, int64_t rows,
                 std::span<const float> p, std::span<const float> q, std::span<float> residual) {
  LowRankKeepLoop(values.data(), factor, ShapeOf(rows, values.size(), p.size()), p.data(), q.data(),
                  residual.data());
}

void Orthogonalize(std::span<float> columns, int64_t length) {
  const auto count = static_cast<size_t>(length);
  for (size_t begin = 0; begin < columns.size(); begin += count) {
    float* const column = columns.data() + begin;
    const double before = NormOf(column, count);
    if (before == 0) continue;
    // To length 1 first, so that no product of two elements is too small or too large.
    Scale(column, count, 1 / before);
    double left = 1;
    for (int pass = 0; pass < 2; ++pass) {  // The second takes what rounding has left.
      for (size_t other = 0; other < begin; other += count) {
        const double dot = LowRankDotLoop(column, columns.data() + other, count);
        for (size_t j = 0; j < count; ++j) {
          column[j] = static_cast<float>(column[j] - dot * columns[other + j]);
        }
      }
      const double norm = NormOf(column, count);
      left *= norm;
      if (left < kLeastShare) {
        std::fill_n(column, count, 0.0f);
        break;
      }
      Scale(column, count, 1 / norm);
    }
  }
}

}  // namespace mydist
