// Matrices as products of two narrow ones, for PowerSGD. A matrix M has its rows one behind the
// other; P and Q have their columns one behind the other: rank × rows, rank × columns.
// All results have the same bits on every CPU, so that ranks on different ones stay equal.
#pragma once

#include <cstdint>
#include <span>

#include "base/export.h"

namespace mydist {

// M = values + residual × factor, which is not made: memory costs more than the sums.
struct LowRankMatrix {
  std::span<const float> values;
  std::span<const float> residual;  // Of the same length.
  float factor = 1;
  int64_t rows = 0;
};

// p = M·q. The lengths of p and q are multiples of the rows and of the columns, alike.
MYDIST_EXPORT void LowRankTimes(const LowRankMatrix& m, std::span<const float> q,
                                std::span<float> p);
// q = Mᵀ·p.
MYDIST_EXPORT void LowRankTransposedTimes(const LowRankMatrix& m, std::span<const float> p,
                                          std::span<float> q);
// out = p·qᵀ × scale.
MYDIST_EXPORT void LowRankProduct(std::span<const float> p, std::span<const float> q, int64_t rows,
                                  float scale, std::span<float> out);
// residual = values + residual × factor − p·qᵀ.
MYDIST_EXPORT void LowRankKeep(std::span<const float> values, float factor, int64_t rows,
                               std::span<const float> p, std::span<const float> q,
                               std::span<float> residual);
// Columns of length 1, at right angles, that span the same; 0 where one depends on those before.
MYDIST_EXPORT void Orthogonalize(std::span<float> columns, int64_t length);

}  // namespace mydist
