// The numbers of calls without a name (base/call_name.h), in what ranks agree on: calls of a
// training loop have another one in each step, and are the same but for it. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "controller/messages/response.h"

namespace mydist {

// Of the request's name. Nothing in other names, and where the group has a number too, but another.
std::optional<uint64_t> CallNumber(const Request& request);

// The same call with another number, in its group as well; unchanged if it has none.
Agreement WithCallNumber(Agreement agreement, uint64_t number);

}  // namespace mydist
