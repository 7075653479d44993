// Magnitudes of float32 as bits, which are in the order of the numbers, NaN behind infinity; and
// the scale of a block of values. Part of the codecs' files only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/loop.h"

namespace mydist {

constexpr uint32_t kMagnitude = 0x7fffffffu;  // The bits without the sign.
constexpr uint32_t kInfinity = 0x7f800000u;

MYDIST_LOOP_PART uint32_t LargestMagnitude(const float* __restrict values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, values[i]) & kMagnitude;
    largest = largest < magnitude ? magnitude : largest;
  }
  return largest;
}

struct BlockScale {
  float scale;    // Of a code; NaN if a value is not finite.
  float inverse;  // 1 ÷ scale, or 0.
};

// So that the largest value of a block has the code `most`. A block without a value of at least
// `least` is sent as 0: the inverse would not be finite.
MYDIST_LOOP_PART BlockScale ScaleOfBlock(uint32_t largest, float most, float least) {
  const auto value = __builtin_bit_cast(float, largest);
  const bool is_sent = largest < kInfinity && value >= least;
  return {.scale = largest >= kInfinity ? __builtin_nanf("")
                   : is_sent            ? value / most
                                        : 0,
          .inverse = is_sent ? most / value : 0};
}

}  // namespace mydist
