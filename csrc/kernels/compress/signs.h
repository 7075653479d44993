// Signs as bits: what onebit and signsgd share. Part of the codecs' files only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/compress/packing.h"
#include "kernels/loop.h"

namespace mydist {

// Adds by where a bit is 0 and −by where it is 1.
MYDIST_LOOP_PART void AddSigns(const uint8_t* __restrict bits, size_t count, float by,
                               float* __restrict out) {
  const auto positive = __builtin_bit_cast(uint32_t, by);
  Codes codes;
  for (size_t begin = 0; begin < count; begin += kGroup) {
    const int length = static_cast<int>(count - begin < kGroup ? count - begin : kGroup);
    UnpackGroup(bits + begin / 8, static_cast<size_t>(length), 1, codes);
    float* __restrict to = out + begin;
    for (int i = 0; i < length; ++i) {
      const uint32_t sign = static_cast<uint32_t>(codes.bytes[i]) << 31;
      to[i] += __builtin_bit_cast(float, positive ^ sign);
    }
  }
}

}  // namespace mydist
