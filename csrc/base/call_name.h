// Names of collectives that were given none: Python calls the seventh such allreduce
// "allreduce.noname.7", and a member of such a group "grouped_allreduce.noname.7.2". Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/export.h"

namespace mydist {

// Of such a name the number, as a part of it: at most 18 digits. Empty: a name that a user chose.
MYDIST_EXPORT std::string_view CallDigits(std::string_view name);

// What calls of a kind have in common: "grouped_allreduce.noname.2". Other names stay.
MYDIST_EXPORT std::string WithoutCallDigits(std::string_view name);

}  // namespace mydist
