// Backend choice: over which backend a job talks. Pure: a function of facts that are the same on
// all ranks, so all choose alike.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace mydist {

struct BackendFacts {
  std::string asked;  // "auto", "local" or "gloo".
  bool is_one_host = false;
  std::string no_arena_reason;  // Empty: the ranks of each host share memory.
  std::string no_gloo_reason;   // Empty: Gloo loads on every rank.
};

// Whether the choice depends on no_gloo_reason.
bool MayTakeGloo(const BackendFacts& facts);

// What ranks say why they have no Gloo, by rank, as one reason for all; empty: all have it.
std::string NoGlooReason(const std::vector<std::string>& reasons,
                         const std::vector<std::string>& hosts);

struct BackendChoice {
  std::string name;  // "local" or "gloo".
  std::string why;   // For the log.
};

// kInvalidArgument or kInternal saying what is missing and how to get it.
Result<BackendChoice> ChooseBackend(const BackendFacts& facts);

}  // namespace mydist
