// Draws of stochastic codecs: a hash of key and position, so that runs repeat and any number of
// positions can be drawn at once. Part of the codecs' files only.
#pragma once

#include <cstdint>

#include "kernels/loop.h"

namespace mydist {

struct DrawKey {
  explicit DrawKey(uint64_t key)
      : low(static_cast<uint32_t>(key)), high(static_cast<uint32_t>(key >> 32)) {}

  uint32_t low;
  uint32_t high;
};

// 32 bits, each as often 0 as 1. The multipliers are those of lowbias32 (Chris Wellons,
// "Prospecting for Hash Functions"); half of the key enters between them, so keys do not shift one
// sequence.
MYDIST_LOOP_PART uint32_t Draw(uint32_t low, uint32_t high, uint32_t position) {
  uint32_t mixed = position + low;
  mixed = (mixed ^ (mixed >> 16)) * 0x7feb352du;
  mixed = ((mixed ^ (mixed >> 15)) + high) * 0x846ca68bu;
  return mixed ^ (mixed >> 16);
}

}  // namespace mydist
