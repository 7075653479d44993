// Sums over many values in one order on every CPU: 16 sums, each of every 16th value. They are
// float64, which no sum of float32 overflows: a sum is finite if and only if all values are.
// Part of the codecs' files only.
#pragma once

#include <cstddef>

#include "kernels/loop.h"

namespace mydist {

struct alignas(64) Sums {
  double lanes[16] = {};
};

MYDIST_LOOP_PART void AddMagnitudes(const float* __restrict values, size_t count, Sums& sums) {
  double lanes[16];
  for (size_t j = 0; j < 16; ++j) lanes[j] = sums.lanes[j];
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (size_t j = 0; j < 16; ++j) lanes[j] += __builtin_fabs(static_cast<double>(values[i + j]));
  }
  for (size_t j = 0; i + j < count; ++j)
    lanes[j] += __builtin_fabs(static_cast<double>(values[i + j]));
  for (size_t j = 0; j < 16; ++j) sums.lanes[j] = lanes[j];
}

MYDIST_LOOP_PART void AddSquares(const float* __restrict values, size_t count, Sums& sums) {
  double lanes[16];
  for (size_t j = 0; j < 16; ++j) lanes[j] = sums.lanes[j];
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (size_t j = 0; j < 16; ++j) {
      const double value = values[i + j];
      lanes[j] += value * value;
    }
  }
  for (size_t j = 0; i + j < count; ++j) {
    const double value = values[i + j];
    lanes[j] += value * value;
  }
  for (size_t j = 0; j < 16; ++j) sums.lanes[j] = lanes[j];
}

MYDIST_LOOP_PART double Total(const Sums& sums) {
  double total = 0;
  for (size_t j = 0; j < 16; ++j) total += sums.lanes[j];
  return total;
}

}  // namespace mydist
