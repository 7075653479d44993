// Topology: who and where this rank is. Pure; made once per init from what all ranks reported.
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
};

// `hosts[r]` is the host of rank r. Ranks of one host need not be contiguous; hosts are numbered
// in the order of their lowest rank. kInvalidArgument when rank is outside [0, hosts.size()).
MYDIST_EXPORT Result<Topology> MakeTopology(int rank, std::vector<std::string> hosts);

}  // namespace mydist
