#include "config/stopped_processes.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/process.h"

namespace mydist {
namespace {

// In what /proc tells of an environment, where each `NAME=value` ends with a zero.
std::optional<std::string> ValueIn(const std::string& environment, const std::string& name) {
  const std::string wanted = '\0' + name + '=';
  const size_t at = ('\0' + environment).find(wanted);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + wanted.size() - 1;
  return environment.substr(begin, environment.find('\0', begin) - begin);
}

}  // namespace

std::vector<StoppedProcess> FindStopped(const std::string& shared, const std::string& variable) {
  std::vector<StoppedProcess> found;
  const char* const own = std::getenv(shared.c_str());
  if (own == nullptr) return found;
  std::error_code unreadable;
  for (std::filesystem::directory_iterator entry("/proc", unreadable), end;
       !unreadable && entry != end; entry.increment(unreadable)) {
    const std::string name = entry->path().filename();
    int64_t pid = 0;
    const char* const name_end = name.data() + name.size();
    if (std::from_chars(name.data(), name_end, pid).ptr != name_end) continue;
    if (!IsStopped(pid)) continue;
    const std::string environment = ContentsOf("/proc/" + name + "/environ");
    const std::optional<std::string> value = ValueIn(environment, variable);
    if (value && ValueIn(environment, shared) == own) found.push_back({pid, *value});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& left, const auto& right) { return left.pid < right.pid; });
  return found;
}

}  // namespace mydist
