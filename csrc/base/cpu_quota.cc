#include "base/cpu_quota.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace mydist {
namespace {

bool HasWord(const std::string& words, std::string_view word) {
  std::istringstream stream(words);
  for (std::string each; std::getline(stream, each, ',');) {
    if (each == word) return true;
  }
  return false;
}

// A hierarchy of control groups that may hold back CPU time, as it is mounted here.
struct Mount {
  bool is_v2;
  std::string top;    // The group that is seen at `place`.
  std::string place;  // A path.
};

std::vector<Mount> Mounts(const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string skipped;
    Mount mount{};
    words >> skipped >> skipped >> skipped >> mount.top >> mount.place;
    while (words >> skipped && skipped != "-") {
    }
    std::string type;
    std::string options;
    words >> type >> skipped >> options;
    mount.is_v2 = type == "cgroup2";
    if (mount.is_v2 || (type == "cgroup" && HasWord(options, "cpu"))) mounts.push_back(mount);
  }
  return mounts;
}

// The group of this process in a hierarchy; "/" where it is not known.
std::string GroupIn(const Mount& mount, const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_it = mount.is_v2 ? controllers.empty() : HasWord(controllers, "cpu");
    if (is_it) return line.substr(second + 1);
  }
  return "/";
}

// Where that group is under the mount. A container may see its own group at the mount's top, and
// its name as the host has it.
std::string PathUnder(const Mount& mount, const std::string& group) {
  const std::string top = mount.top == "/" ? "" : mount.top;
  const bool is_inside = group.starts_with(top + "/") && group.find("/..") == std::string::npos;
  return is_inside ? group.substr(top.size()) : "";
}

std::optional<double> QuotaOf(const std::string& folder, bool is_v2) {
  double quota = 0;
  double period = 0;
  if (is_v2) {
    // "max 100000" is no number, and no quota.
    std::ifstream(folder + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  if (!(quota > 0 && period > 0)) return std::nullopt;
  return quota / period;
}

std::string IdentityOf(const std::string& folder) {
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) return folder;
  return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

}  // namespace

std::vector<CpuQuota> ReadCpuQuotas(const std::string& root) {
  std::vector<CpuQuota> quotas;
  for (const Mount& mount : Mounts(root)) {
    std::string path = PathUnder(mount, GroupIn(mount, root));
    for (bool is_top = false; !is_top; path.resize(is_top ? 0 : path.rfind('/'))) {
      while (path.ends_with('/')) path.pop_back();
      is_top = path.empty();
      const std::string folder = root + mount.place + path;
      const std::optional<double> cores = QuotaOf(folder, mount.is_v2);
      if (!cores) continue;
      const CpuQuota quota{*cores, IdentityOf(folder)};
      // A hierarchy may be mounted in several places.
      if (std::find(quotas.begin(), quotas.end(), quota) == quotas.end()) quotas.push_back(quota);
    }
  }
  return quotas;
}

}  // namespace mydist
