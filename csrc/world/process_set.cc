#include "world/process_set.h"

namespace mydist {
namespace {

constexpr size_t kMaxRuns = 16;
constexpr size_t kMaxHosts = 4;

}  // namespace

std::string RankListText(std::span<const int32_t> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t run_count = 0;
  for (size_t begin = 0; begin < ranks.size(); ++run_count) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin < 3) end = begin + 1;
    if (run_count == kMaxRuns)
      return text + " and " + std::to_string(ranks.size() - begin) + " more";
    if (run_count > 0) text += ", ";
    text += std::to_string(ranks[begin]);
    if (end - begin > 1) text += "-" + std::to_string(ranks[end - 1]);
    begin = end;
  }
  return text;
}

std::string HostListText(std::span<const int32_t> ranks, const std::vector<std::string>& hosts,
                         std::span<const int64_t> pids) {
  std::vector<std::string> names;
  for (const int32_t rank : ranks) {
    if (rank < 0 || static_cast<size_t>(rank) >= hosts.size()) continue;
    const std::string& host = hosts[static_cast<size_t>(rank)];
    if (std::find(names.begin(), names.end(), host) == names.end()) names.push_back(host);
  }
  if (names.empty()) return "";
  std::string text = names.size() == 1 ? " (host " : " (hosts ";
  for (size_t i = 0; i < std::min(names.size(), kMaxHosts); ++i) {
    if (i > 0) text += ", ";
    text += names[i];
  }
  if (names.size() > kMaxHosts) {
    text += " and " + std::to_string(names.size() - kMaxHosts) + " more";
  }
  if (ranks.size() == 1 && static_cast<size_t>(ranks[0]) < pids.size()) {
    text += ", pid " + std::to_string(pids[static_cast<size_t>(ranks[0])]);
  }
  return text + ")";
}

std::string RankText(int32_t rank, const std::vector<std::string>& hosts,
                     std::span<const int64_t> pids) {
  return RankListText({&rank, 1}) + HostListText({&rank, 1}, hosts, pids);
}

}  // namespace mydist
