// ReadNcclApi: fills NcclApi from whatever finds functions by their names. Pure.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "gpu/nccl_api.h"

namespace mydist::nccl {

// The function of that name; null when there is none.
using SymbolLookup = std::function<void*(const char* name)>;

// kInternal, saying what is wrong, when this is no NCCL, is older than 2.18, or lacks a function
// that is not marked "newer"; those become null.
Result<NcclApi> ReadNcclApi(const SymbolLookup& lookup);

}  // namespace mydist::nccl
