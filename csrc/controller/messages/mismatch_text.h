// Mismatch text: tells the user on which properties of a tensor the ranks disagree. Pure.
#pragma once

#include <string>
#include <vector>

#include "controller/readiness.h"

namespace mydist {

// A head naming tensor, op and properties, one row per variant, and what to do. `readiness` has
// several variants; `hosts` (of each rank) may be empty.
std::string MismatchText(const Readiness& readiness, const std::vector<std::string>& hosts);

// Why a member of a group fails whose own ranks agree: another member's text.
std::string GroupFailureText(const std::string& name, const std::string& group,
                             const std::string& cause);

}  // namespace mydist
