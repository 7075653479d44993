// NcclLibrary: the NCCL that is used, opened at run time: the one that this process already has,
// else that of an installed package, else the system's. Two of them in one process would each take
// their share of a GPU's memory. Never closed: NCCL has threads of its own. Any thread may open
// one; a value afterwards.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "algorithms/device/device_plugin.h"
#include "base/status.h"
#include "gpu/nccl_api.h"

namespace mydist::nccl {

struct NcclLibrary {
  NcclApi api;
  std::string path;  // The file it came from.

  // kInternal, naming all places looked at and what was wrong there. May take as long as loading
  // a file of some hundred MB does; touches no GPU.
  static Result<NcclLibrary> Open(const NcclPlaces& places);
};

// The files of this process, as it loaded them, of which one could contain a NCCL: those named
// libnccl*, then torch's own, into which it may have been linked.
std::vector<std::string> LoadedCandidates();

// ReadNcclApi: fills NcclApi from whatever finds functions by their names. Pure.

// The function of that name; null when there is none.
using SymbolLookup = std::function<void*(const char* name)>;

// kInternal, saying what is wrong, when this is no NCCL, is older than 2.18, or lacks a function
// that is not marked "newer"; those become null.
Result<NcclApi> ReadNcclApi(const SymbolLookup& lookup);

}  // namespace mydist::nccl
