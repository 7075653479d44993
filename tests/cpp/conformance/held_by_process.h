// What this process holds, for tests that nothing is left of jobs and connections.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace mydist {

inline int64_t OpenFileCount() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

// Without those that are ending: the kernel still lists them for a moment when they have been
// joined.
inline int64_t LivingThreadCount() {
  constexpr uint64_t kIsExiting = 4;  // PF_EXITING, see proc(5).
  int64_t count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string line;
    std::getline(std::ifstream(thread.path() / "stat"), line);
    if (line.empty()) continue;  // It has ended since.
    // Behind the name: a letter, five numbers and the flags.
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string skipped;
    for (int i = 0; i < 6; ++i) fields >> skipped;
    uint64_t flags = 0;
    fields >> flags;
    count += (flags & kIsExiting) == 0 ? 1 : 0;
  }
  return count;
}

}  // namespace mydist
