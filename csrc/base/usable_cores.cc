#include "base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <functional>
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
  for (const CpuQuota& quota : quotas) text << " " << quota.cores << " of " << quota.group;
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

}  // namespace mydist
