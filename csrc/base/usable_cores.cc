#include "base/usable_cores.h"

#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

namespace mydist {

namespace {

std::vector<int> CoresOfThisThread() {
  std::vector<int> cores;
  // A kernel for more processors than there is room for refuses.
  for (int limit = CPU_SETSIZE; limit <= UsableCores::kMostCores; limit *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
        CPU_ALLOC(static_cast<size_t>(limit)), [](cpu_set_t* each) { CPU_FREE(each); });
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(limit));
    if (set == nullptr || sched_getaffinity(0, bytes, set.get()) != 0) continue;
    for (int core = 0; core < limit; ++core) {
      if (CPU_ISSET_S(static_cast<size_t>(core), bytes, set.get())) cores.push_back(core);
    }
    break;
  }
  return cores;
}

// Of as many digits as there are; nothing else is taken off the front.
std::optional<int> TakeCore(std::string_view& text) {
  int core = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), core);
  if (error != std::errc() || core < 0 || core >= UsableCores::kMostCores) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return core;
}

std::optional<std::vector<int>> CoresIn(std::string_view text) {
  std::vector<int> cores;
  while (!text.empty()) {
    if (!cores.empty() && !text.starts_with(',')) return std::nullopt;
    if (!cores.empty()) text.remove_prefix(1);
    const std::optional<int> first = TakeCore(text);
    std::optional<int> last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = TakeCore(text);
    }
    if (!first || !last || *last < *first) return std::nullopt;
    if (!cores.empty() && *first <= cores.back()) return std::nullopt;
    for (int core = *first; core <= *last; ++core) cores.push_back(core);
  }
  return cores;
}

// A matching of processes and cores, grown by one process at a time: each takes a core that is
// free, or one whose owner can have another.
class CoreMatching {
 public:
  explicit CoreMatching(std::span<const UsableCores> processes) : processes_(processes) {}

  bool Add(size_t process) {
    std::vector<bool> asked;
    return Place(process, asked);
  }

 private:
  bool Place(size_t process, std::vector<bool>& asked) {
    const std::vector<int>& cores = processes_[process].cores;
    for (const int core : cores) {
      if (owners_.emplace(core, process).second) return true;
    }
    for (const int core : cores) {
      const auto number = static_cast<size_t>(core);
      if (asked.size() <= number) asked.resize(number + 1);
      if (asked[number]) continue;
      asked[number] = true;
      if (!Place(owners_[core], asked)) continue;
      owners_[core] = process;
      return true;
    }
    return false;
  }

  const std::span<const UsableCores> processes_;
  std::map<int, size_t> owners_;
};

bool FitIntoQuotas(std::span<const UsableCores> processes) {
  std::map<std::string, int> counts;
  return std::all_of(processes.begin(), processes.end(), [&](const UsableCores& process) {
    return std::all_of(process.quotas.begin(), process.quotas.end(),
                       [&](const CpuQuota& quota) { return ++counts[quota.group] <= quota.cores; });
  });
}

}  // namespace

UsableCores UsableCores::OfThisThread() { return {CoresOfThisThread(), ReadCpuQuotas()}; }

std::string UsableCores::ToText() const {
  std::ostringstream text;
  for (size_t i = 0; i < cores.size();) {
    size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    text << (i == 0 ? "" : ",") << cores[i];
    if (last > i) text << "-" << cores[last];
    i = last + 1;
  }
  for (const CpuQuota& quota : quotas) {
    std::array<char, 32> digits{};  // As many as it takes to read the same number.
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), quota.cores).ptr;
    text << " " << std::string_view(digits.data(), end) << " of " << quota.group;
  }
  return text.str();
}

std::optional<UsableCores> UsableCores::FromText(std::string_view text) {
  const size_t space = text.find(' ');
  const auto cores = CoresIn(text.substr(0, space));
  if (!cores) return std::nullopt;
  if (space == std::string_view::npos) return UsableCores{*cores};
  std::istringstream words{std::string(text.substr(space))};
  UsableCores usable{*cores};
  do {
    CpuQuota& quota = usable.quotas.emplace_back();
    std::string of;
    words >> quota.cores >> of >> quota.group;
    if (words.fail() || of != "of" || !(quota.cores > 0)) return std::nullopt;
  } while (!words.eof());
  return usable;
}

bool HaveACoreEach(std::span<const UsableCores> processes) {
  if (processes.size() <= 1) return true;
  if (!FitIntoQuotas(processes)) return false;
  CoreMatching matching(processes);
  for (size_t process = 0; process < processes.size(); ++process) {
    if (!matching.Add(process)) return false;
  }
  return true;
}

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
