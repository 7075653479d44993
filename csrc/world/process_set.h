// ProcessSet: the ranks that take part in a collective. Pure.
// Set 0 is the whole job and always exists.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
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
  // "process set 3 with ranks [1, 4]".
  std::string ToString() const {
    std::string list;
    for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
    return "process set " + std::to_string(id) + " with ranks [" + list + "]";
  }
};

// The whole job.
inline ProcessSet GlobalProcessSet(int size) {
  ProcessSet global;
  global.ranks.resize(static_cast<size_t>(size));
  std::iota(global.ranks.begin(), global.ranks.end(), 0);
  return global;
}

// RankList: how messages to the user name ranks and their hosts. Pure.

// "rank 3", "ranks 2, 3", "ranks 0-2, 5"; long lists end in "and N more". Ranks ascend.
std::string RankListText(std::span<const int32_t> ranks);

// " (host a)", " (hosts a, b)", " (hosts a, b, c and 5 more)" of these ranks, each once; "" when
// `hosts` does not know them. Of one rank also its process, where `pids` knows it.
std::string HostListText(std::span<const int32_t> ranks, const std::vector<std::string>& hosts,
                         std::span<const int64_t> pids = {});

// "rank 3 (host a, pid 71)", as far as `hosts` and `pids` know it.
std::string RankText(int32_t rank, const std::vector<std::string>& hosts,
                     std::span<const int64_t> pids = {});

}  // namespace mydist
