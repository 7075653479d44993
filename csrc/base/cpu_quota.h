// CpuQuota: how much CPU time the control groups of this process leave it, as containers have it.
// Linux only; reads a few small files. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "base/export.h"

namespace mydist {

struct CpuQuota {
  double cores = 0;   // CPU time per time, of the whole group.
  std::string group;  // The same for all processes of this machine that share the quota.

  bool operator==(const CpuQuota&) const = default;
};

// The quotas of the groups that this process is in and of those around them (cpu.max of cgroup v2,
// cpu.cfs_quota_us of v1), each group once, inner ones first: also a wide one counts, which more
// processes share. Empty when there is none, or none can be read. `root` stands for "/", for tests.
MYDIST_EXPORT std::vector<CpuQuota> ReadCpuQuotas(const std::string& root = "");

}  // namespace mydist
