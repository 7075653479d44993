#include "world/topology.h"

#include <algorithm>
#include <map>
#include <utility>

namespace mydist {

Result<Topology> MakeTopology(int rank, std::vector<std::string> hosts) {
  const int size = static_cast<int>(hosts.size());
  if (rank < 0 || rank >= size) {
    return Status::InvalidArgument("rank " + std::to_string(rank) + " is outside a job of size " +
                                   std::to_string(size) + "; expected 0 to size-1");
  }
  std::map<std::string, int> ranks_on_host;
  std::vector<int> local_rank_of(hosts.size());
  for (size_t r = 0; r < hosts.size(); ++r) local_rank_of[r] = ranks_on_host[hosts[r]]++;

  Topology topology;
  topology.rank = rank;
  topology.size = size;
  topology.local_rank = local_rank_of[static_cast<size_t>(rank)];
  topology.local_size = ranks_on_host[hosts[static_cast<size_t>(rank)]];
  topology.cross_size = 0;
  // Only hosts that have a rank with our local_rank count, ordered by their lowest rank.
  std::map<std::string, int> lowest_rank;
  for (int r = size - 1; r >= 0; --r) lowest_rank[hosts[static_cast<size_t>(r)]] = r;
  const int own_lowest = lowest_rank[hosts[static_cast<size_t>(rank)]];
  for (const auto& [host, lowest] : lowest_rank) {
    if (ranks_on_host[host] <= topology.local_rank) continue;
    ++topology.cross_size;
    if (lowest < own_lowest) ++topology.cross_rank;
  }
  topology.is_homogeneous =
      std::all_of(ranks_on_host.begin(), ranks_on_host.end(),
                  [&](const auto& entry) { return entry.second == topology.local_size; });
  topology.hosts = std::move(hosts);
  return topology;
}

}  // namespace mydist
