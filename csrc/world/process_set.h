// ProcessSet: the ranks that take part in a collective. Pure.
// Set 0 is the whole job and always exists.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace mydist {

using ProcessSetId = int32_t;
inline constexpr ProcessSetId kGlobalProcessSet = 0;

struct ProcessSet {
  ProcessSetId id = kGlobalProcessSet;
  std::vector<int> ranks;  // Global ranks, ascending, no duplicates.

  int size() const { return static_cast<int>(ranks.size()); }
  // The index of a global rank inside the set, if it is a member.
  std::optional<int> IndexOf(int global_rank) const {
    const auto it = std::lower_bound(ranks.begin(), ranks.end(), global_rank);
    if (it == ranks.end() || *it != global_rank) return std::nullopt;
    return static_cast<int>(it - ranks.begin());
  }
};

}  // namespace mydist
