#include "world/topology.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace mydist {

std::vector<std::vector<int>> RanksByHost(const std::vector<std::string>& hosts) {
  std::vector<std::vector<int>> ranks;
  std::map<std::string_view, size_t> index_of;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [entry, is_new] = index_of.emplace(hosts[rank], ranks.size());
    if (is_new) ranks.emplace_back();
    ranks[entry->second].push_back(static_cast<int>(rank));
  }
  return ranks;
}

int Topology::host_count() const { return static_cast<int>(RanksByHost(hosts).size()); }

Result<Topology> MakeTopology(int rank, std::vector<std::string> hosts) {
  const int size = static_cast<int>(hosts.size());
  if (rank < 0 || rank >= size) {
    return Status::InvalidArgument("rank " + std::to_string(rank) + " is outside a job of size " +
                                   std::to_string(size) + "; expected 0 to size-1");
  }
  const std::vector<std::vector<int>> by_host = RanksByHost(hosts);
  const auto own = std::find_if(by_host.begin(), by_host.end(), [&](const auto& ranks) {
    return hosts[static_cast<size_t>(ranks.front())] == hosts[static_cast<size_t>(rank)];
  });

  Topology topology;
  topology.rank = rank;
  topology.size = size;
  topology.local_rank = static_cast<int>(std::find(own->begin(), own->end(), rank) - own->begin());
  topology.local_size = static_cast<int>(own->size());
  topology.cross_size = 0;
  // Only hosts that have a rank with our local_rank count.
  for (auto ranks = by_host.begin(); ranks != by_host.end(); ++ranks) {
    if (static_cast<int>(ranks->size()) <= topology.local_rank) continue;
    ++topology.cross_size;
    if (ranks < own) ++topology.cross_rank;
  }
  topology.is_homogeneous = std::all_of(by_host.begin(), by_host.end(), [&](const auto& ranks) {
    return ranks.size() == own->size();
  });
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
  std::vector<std::string> host_of;
  for (const int each : ranks) host_of.push_back(hosts[static_cast<size_t>(each)]);
  const auto own = std::lower_bound(ranks.begin(), ranks.end(), rank);
  MYDIST_CHECK(own != ranks.end() && *own == rank);
  HostGroups groups{.members = RanksByHost(host_of)};
  const HostSeat seat = groups.Seats()[static_cast<size_t>(own - ranks.begin())];
  groups.host = seat.host;
  groups.place = seat.place;
  return groups;
}

}  // namespace mydist
