// What a gradient may not have. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "base/export.h"

namespace mydist::ps {

// The index of the first value that is NaN or infinite; -1: there is none.
MYDIST_EXPORT int64_t FirstNotFinite(std::span<const float> values);

}  // namespace mydist::ps
