// What only `make deep` tries, by TEST_DEEP=1 in the environment: an ordinary run has fewer ranks,
// seeds and repetitions of the same tests, and still fewer under a sanitizer, which slows them down
// and looks for other faults. docs/development.md says what covers the rest.
#pragma once

#include <cstdlib>
#include <vector>

#include "conformance/sanitizers.h"

namespace mydist {

inline bool IsDeep() {
  static const bool kIsDeep = [] {
    const char* const asked = std::getenv("TEST_DEEP");
    return asked != nullptr && asked[0] == '1';
  }();
  return kIsDeep;
}

template <typename T>
T InDeep(T deep, T ordinary) {
  return IsDeep() ? deep : ordinary;
}

template <typename T>
T InDeep(T deep, T ordinary, T sanitized) {
  return InDeep(deep, kIsSanitized ? sanitized : ordinary);
}

// Numbers of ranks from `smallest` to `largest`. Ordinary: one, even, odd, one more than a power of
// two, and the largest, which fills every level of a tree; two and three under a sanitizer.
inline std::vector<int> Ranks(int smallest, int largest = 8) {
  std::vector<int> ranks;
  for (int size = smallest; size <= largest; ++size) {
    const bool is_small = size == 2 || size == 3;
    const bool is_ordinary = is_small || size == 1 || size == 5 || size == largest;
    if (InDeep(true, is_ordinary, is_small)) ranks.push_back(size);
  }
  return ranks;
}

}  // namespace mydist
