// NcclLibrary: the NCCL that is used, opened at run time: the one that this process already has,
// else that of an installed package, else the system's. Two of them in one process would each take
// their share of a GPU's memory. Never closed: NCCL has threads of its own. Any thread may open
// one; a value afterwards.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/nccl_api.h"
#include "transport/factory.h"

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

}  // namespace mydist::nccl
