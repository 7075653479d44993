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

int HostGroups::smallest() const {
  return static_cast<int>(
      std::min_element(members.begin(), members.end(), [](const auto& a, const auto& b) {
        return a.size() < b.size();
      })->size());
}

bool HostGroups::HasTwoLevels() const {
  return members.size() > 1 && std::any_of(members.begin(), members.end(),
                                           [](const auto& group) { return group.size() > 1; });
}

std::vector<int> HostGroups::Column(int at) const {
  std::vector<int> column;
  column.reserve(members.size());
  for (const std::vector<int>& group : members) column.push_back(group[static_cast<size_t>(at)]);
  return column;
}

std::vector<HostSeat> HostGroups::Seats() const {
  size_t size = 0;
  for (const std::vector<int>& group : members) size += group.size();
  std::vector<HostSeat> seats(size);
  for (int number = 0; number < host_count(); ++number) {
    const std::vector<int>& group = members[static_cast<size_t>(number)];
    for (size_t at = 0; at < group.size(); ++at) {
      seats[static_cast<size_t>(group[at])] = {number, static_cast<int>(at)};
    }
  }
  return seats;
}

HostGroups MakeHostGroups(const std::vector<std::string>& hosts, const std::vector<int>& ranks,
                          int rank) {
  HostGroups groups;
  std::map<std::string, size_t> number_of;
  bool is_member = false;
  for (size_t index = 0; index < ranks.size(); ++index) {
    const std::string& host = hosts[static_cast<size_t>(ranks[index])];
    const size_t number = number_of.emplace(host, groups.members.size()).first->second;
    if (number == groups.members.size()) groups.members.emplace_back();
    std::vector<int>& group = groups.members[number];
    if (ranks[index] == rank) {
      is_member = true;
      groups.host = static_cast<int>(number);
      groups.place = static_cast<int>(group.size());
    }
    group.push_back(static_cast<int>(index));
  }
  MYDIST_CHECK(is_member);
  return groups;
}

}  // namespace mydist
