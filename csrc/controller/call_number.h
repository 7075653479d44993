// The numbers of calls without a name. Python names the seventh such allreduce
// "allreduce.noname.7", and a member of such a group "grouped_allreduce.noname.7.2"; so calls of a
// training loop have another name in each step, and are the same but for the number. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "controller/response.h"

namespace mydist {

// Of the request's name. Nothing in other names, and where the group has a number too, but another.
std::optional<uint64_t> CallNumber(const Request& request);

// The same call with another number, in its group as well; unchanged if it has none.
Agreement WithCallNumber(Agreement agreement, uint64_t number);

}  // namespace mydist
