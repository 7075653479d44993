#include "ps/finite.h"

#include <algorithm>
#include <bit>

namespace mydist::ps {
namespace {

constexpr size_t kBlock = 4096;

bool IsFinite(float value) {
  constexpr uint32_t kExponent = 0x7f800000;
  return (std::bit_cast<uint32_t>(value) & kExponent) != kExponent;
}

// Without a branch for each value, so that compilers make vectors of it.
bool AreFinite(std::span<const float> values) {
  int wrong = 0;
  for (const float value : values) wrong += IsFinite(value) ? 0 : 1;
  return wrong == 0;
}

}  // namespace

int64_t FirstNotFinite(std::span<const float> values) {
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::span<const float> block =
        values.subspan(begin, std::min(kBlock, values.size() - begin));
    if (AreFinite(block)) continue;
    const auto first = std::find_if_not(block.begin(), block.end(), IsFinite);
    return static_cast<int64_t>(begin) + (first - block.begin());
  }
  return -1;
}

}  // namespace mydist::ps
