// CpuQuota: how much CPU time the control groups of this process leave it, as containers have it.
// Linux only; reads a few small files. Thread-safe.
#pragma once

#include <optional>
#include <string>

#include "base/export.h"

namespace mydist {

struct CpuQuota {
  double cores = 0;   // CPU time per time, of the whole group.
  std::string group;  // The same for all processes of this machine that share the quota.

  bool operator==(const CpuQuota&) const = default;
};

// The tightest quota among the groups that this process is in and those around them (cpu.max of
// cgroup v2, cpu.cfs_quota_us of v1); nothing when there is none, or none can be read. `root`
// stands for "/", for tests.
MYDIST_EXPORT std::optional<CpuQuota> ReadCpuQuota(const std::string& root = "");

}  // namespace mydist
