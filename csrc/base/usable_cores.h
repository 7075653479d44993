// UsableCores: how many cores this process may use. Thread-safe.
#pragma once

#include "base/export.h"

namespace mydist {

// Those of its affinity mask, at the time it is asked; 1 when that cannot be known.
MYDIST_EXPORT int UsableCores();

}  // namespace mydist
