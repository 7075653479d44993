// UsableCores: the cores a process may run on, and how much of them; what the ranks of a host
// compare to know whether each can have a core to itself. Pure, but for OfThisThread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_quota.h"
#include "base/export.h"

namespace mydist {

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
