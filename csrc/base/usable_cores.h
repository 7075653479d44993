// UsableCores: the cores a process may run on, and how much of them; what the ranks of a host
// compare to know whether each can have a core to itself. Pure, but for OfThisThread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"

namespace mydist {

// CpuQuota: how much CPU time the control groups of this process leave it, as containers have it.
// Linux only; reads a few small files. Thread-safe.

struct CpuQuota {
  double cores = 0;   // CPU time per time, of the whole group.
  std::string group;  // The same for all processes of this machine that share the quota.

  bool operator==(const CpuQuota&) const = default;
};

// The quotas of the groups that this process is in and of those around them (cpu.max of cgroup v2,
// cpu.cfs_quota_us of v1), each group once, inner ones first: also a wide one counts, which more
// processes share. Empty when there is none, or none can be read. `root` stands for "/", for tests.
MYDIST_EXPORT std::vector<CpuQuota> ReadCpuQuotas(const std::string& root = "");

struct MYDIST_EXPORT UsableCores {
  std::vector<int> cores;  // By the kernel's numbers, ascending. Empty: not known.
  std::vector<CpuQuota> quotas{};

  bool operator==(const UsableCores&) const = default;

  // At the time it is asked.
  static UsableCores OfThisThread();

  // One line, such as "0-3,8" or "0-3,8 1.5 of 27:4031 6 of 27:2" with quotas.
  std::string ToText() const;
  // Nothing when the text is none of ToText, or names cores beyond kMostCores.
  static std::optional<UsableCores> FromText(std::string_view text);
  static constexpr int kMostCores = 1 << 16;
};

// Whether each of some processes of one machine can have a core that none of the others uses, and
// none is held back by a quota while all compute. One process alone always can.
MYDIST_EXPORT bool HaveACoreEach(std::span<const UsableCores> processes);

}  // namespace mydist
