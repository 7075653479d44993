// MYDIST_CHECK: an invariant of our own code. Never used on what a peer or a user sent.
#pragma once

#include "base/export.h"

namespace mydist {

[[noreturn]] MYDIST_EXPORT void CheckFailed(const char* file, int line, const char* condition);

}  // namespace mydist

#define MYDIST_CHECK(condition)                        \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::mydist::CheckFailed(__FILE__, __LINE__, #condition))
