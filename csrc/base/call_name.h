// What names of collectives and settings tell by themselves. Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/export.h"

namespace mydist {

// Of the name of a call without one: Python calls the seventh such allreduce "allreduce.noname.7",
// and a member of such a group "grouped_allreduce.noname.7.2". Its number, as a part of it: at most
// 18 digits. Empty: a name that a user chose.
MYDIST_EXPORT std::string_view CallDigits(std::string_view name);

// What calls of a kind have in common: "grouped_allreduce.noname.2". Other names stay.
MYDIST_EXPORT std::string WithoutCallDigits(std::string_view name);

// How unlike two names are: insertions, deletions and replacements that lead from one to the other.
// The cost grows with the product of their lengths.
MYDIST_EXPORT size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace mydist
