// Random levels: what qsgd and terngrad share. Part of the codecs' files only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/compress/draws.h"
#include "kernels/compress/packing.h"
#include "kernels/loop.h"

namespace mydist {

// Level of value ÷ unit: a whole number next to it, drawn so that its mean is the value; at most
// `most`, which is at most 127. `inverse` is 1 ÷ unit. The code of level −most is 0, that of most
// 2·most. `count` is at most kGroup, and all values are finite.
MYDIST_LOOP_PART void CodesOfLevels(const float* __restrict values, size_t count, float inverse,
                                    uint32_t most, uint32_t low, uint32_t high, uint32_t position,
                                    Codes& codes) {
  // In units of 2^-24 of a level, as are the draws; the largest of all is below 2^31.
  constexpr float kOne = 16777216;
  const float largest = static_cast<float>(most) * kOne;
  const int length = static_cast<int>(count);
  for (int i = 0; i < length; ++i) {
    const auto bits = __builtin_bit_cast(uint32_t, values[i]);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const float scaled = __builtin_bit_cast(float, magnitude) * inverse * kOne;
    const float clipped = scaled < largest ? scaled : largest;
    const uint32_t draw = Draw(low, high, position + static_cast<uint32_t>(i)) >> 8;
    const uint32_t level = (static_cast<uint32_t>(static_cast<int32_t>(clipped)) + draw) >> 24;
    const uint32_t minus = 0u - (bits >> 31);
    codes.bytes[i] = static_cast<uint8_t>(most + ((level ^ minus) - minus));
  }
}

MYDIST_LOOP_PART void AddLevels(const Codes& codes, size_t count, float unit, uint32_t most,
                                float* __restrict out) {
  const int length = static_cast<int>(count);
  const int zero = static_cast<int>(most);
  for (int i = 0; i < length; ++i) {
    out[i] += unit * static_cast<float>(static_cast<int>(codes.bytes[i]) - zero);
  }
}

}  // namespace mydist
