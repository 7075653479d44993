// Processes of the same job that are stopped, as their environments tell.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/export.h"

namespace mydist {

// A process that a signal or a debugger has stopped, and the value of a variable that it has.
struct StoppedProcess {
  int64_t pid = 0;
  std::string value;
};
// Those of this machine and user that were started with the same value of `shared` as this process
// has it, such as the name of a job, and with any value of `variable`; by ascending pid. Empty
// where this process has no `shared`. Reads the state of each process of the machine.
MYDIST_EXPORT std::vector<StoppedProcess> FindStopped(const std::string& shared,
                                                      const std::string& variable);

}  // namespace mydist
