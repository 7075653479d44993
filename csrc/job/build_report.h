// The build report: which backends this build has, and which of them work on this machine.
#pragma once

#include <string>
#include <vector>

#include "base/export.h"
#include "base/status.h"

namespace mydist {

struct BackendReport {
  std::string name;
  bool built = false;
  bool available = false;
  std::string reason;       // Why not built or not available; empty when available.
  std::string description;  // When available.
};

// One backend: a transport or "nccl"; loads its plugin to find out. NCCL is looked for
// in `nccl_folders` as well, and by MYDIST_NCCL_LIBRARY.
MYDIST_EXPORT BackendReport ReportBackend(const std::string& name,
                                          const std::vector<std::string>& nccl_folders);
// The rows of --check-build, one per backend.
MYDIST_EXPORT std::vector<BackendReport> ReportBackends(
    const std::vector<std::string>& nccl_folders);
// Whether this build has the parameter server; it is no backend of collectives.
MYDIST_EXPORT BackendReport ReportParameterServer();
// The version of the NCCL that is found so, e.g. 23203. kInternal with the reason for none. No GPU
// is asked for.
MYDIST_EXPORT Result<int> FindNcclVersion(const std::vector<std::string>& nccl_folders);

}  // namespace mydist

// For the launcher, which has no C++: a JSON text, valid until the next call. `nccl_folders`:
// separated by ':', may be null.
extern "C" MYDIST_EXPORT const char* mydist_build_report(const char* nccl_folders);
