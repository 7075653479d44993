// Topology: this rank's numbers and hosts. Pure; made once per init from what all ranks reported.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/status.h"

namespace mydist {

struct MYDIST_EXPORT Topology {
  int rank = 0;        // 0 … size-1, unique in the job.
  int size = 1;        // Ranks in the job.
  int local_rank = 0;  // Index among the ranks of this host, in rank order.
  int local_size = 1;  // Ranks on this host.
  int cross_rank = 0;  // Index of this host among the hosts that have a rank with our local_rank.
  int cross_size = 1;  // Number of those hosts.
  bool is_homogeneous = true;      // Every host has the same number of ranks.
  std::vector<std::string> hosts;  // Host of each rank, indexed by rank.
  std::vector<int64_t> pids;       // Process of each rank, on its host; empty: not known.
  // The same of the ranks whose processes this one sees under that number, 0 for the others; empty:
  // not known. Ranks of a host may be in containers that number their processes alike.
  std::vector<int64_t> seen_pids{};

  int host_count() const;
  int64_t SeenPid(int of_rank) const {
    const auto index = static_cast<size_t>(of_rank);
    return index < seen_pids.size() ? seen_pids[index] : 0;
  }
};

// `hosts[r]` is the host of rank r. Ranks of one host need not be contiguous; hosts are numbered
// in the order of their lowest rank.

// The ranks of each host, ascending.
std::vector<std::vector<int>> RanksByHost(const std::vector<std::string>& hosts);

// kInvalidArgument when rank is outside [0, hosts.size()).
MYDIST_EXPORT Result<Topology> MakeTopology(int rank, std::vector<std::string> hosts);

// Where a rank is: members[host][place].
struct HostSeat {
  int host = 0;
  int place = 0;
};

// HostGroups: the ranks of a process set, host by host; what a hierarchy is built on. Pure.
// The same on every rank, but for where it is itself. Numbers of ranks are indices in the set.
struct MYDIST_EXPORT HostGroups {
  // The ranks of each host, ascending; hosts in the order of their lowest rank.
  std::vector<std::vector<int>> members;
  int host = 0;   // Of this rank: an index in `members`,
  int place = 0;  // and in members[host].

  int host_count() const { return static_cast<int>(members.size()); }
  // Ranks on the smallest host: as many can each have a partner on every host.
  int smallest() const;
  // More than one host, and one of them with more than one rank.
  bool HasTwoLevels() const;
  const std::vector<int>& own_members() const { return members[static_cast<size_t>(host)]; }
  // The ranks with place `at`, host by host; it is below smallest().
  std::vector<int> Column(int at) const;
  std::vector<HostSeat> Seats() const;  // Of each rank.
};

// `hosts[r]`: the host of rank r of the job. `ranks`: those of the job in the set, ascending,
// `rank` among them.
MYDIST_EXPORT HostGroups MakeHostGroups(const std::vector<std::string>& hosts,
                                        const std::vector<int>& ranks, int rank);

}  // namespace mydist
