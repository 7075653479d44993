// RankList: how messages to the user name ranks and their hosts. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mydist {

// "rank 3", "ranks 2, 3", "ranks 0-2, 5"; long lists end in "and N more". Ranks ascend.
std::string RankListText(std::span<const int32_t> ranks);

// " (host a)", " (hosts a, b)", " (hosts a, b, c and 5 more)" of these ranks, each once; "" when
// `hosts` does not know them.
std::string HostListText(std::span<const int32_t> ranks, const std::vector<std::string>& hosts);

}  // namespace mydist
