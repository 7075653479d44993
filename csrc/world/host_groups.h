// HostGroups: the ranks of a process set, host by host; what a hierarchy is built on. Pure.
// The same on every rank, but for where it is itself. Numbers of ranks are indices in the set.
#pragma once

#include <string>
#include <vector>

#include "base/export.h"

namespace mydist {

// Where a rank is: members[host][place].
struct HostSeat {
  int host = 0;
  int place = 0;
};

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
