// Backend choice: over which backend a job talks. Pure: a function of facts that are the same on
// all ranks, so all choose alike.
#pragma once

#include <string>

#include "base/result.h"

namespace mydist {

struct BackendFacts {
  std::string asked;  // "auto", "local" or "gloo".
  bool is_one_host = false;
  std::string no_arena_reason;  // Empty: the ranks of each host share memory.
  std::string no_gloo_reason;   // Empty: this build has Gloo, and it loads here.
};

struct BackendChoice {
  std::string name;  // "local" or "gloo".
  std::string why;   // For the log.
};

// kInvalidArgument or kInternal saying what is missing and how to get it.
Result<BackendChoice> ChooseBackend(const BackendFacts& facts);

}  // namespace mydist
