// The transports of this process: a row for each value of MYDIST_CONTROLLER, in order of
// preference. A transport of ours that was not built, or cannot be loaded, is a reason and never a
// crash.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/status.h"
#include "transport/factory.h"

namespace mydist {

struct TransportRow {
  std::string name;         // A value of MYDIST_CONTROLLER, such as "gloo".
  std::string not_built{};  // "not built: …"; empty: this build has it.
  // Opens it once; kInternal with the reason when it cannot be. Empty for "local": the ranks share
  // memory, and there is nothing to open.
  std::function<Result<BackendPlugin*>()> open{};
  // It brings the ranks' numbers (MPI): ranks meet over it and need no rendezvous.
  bool numbers_ranks = false;
  // MYDIST_CONTROLLER=auto may take it; the first such row connects ranks that share no memory.
  bool is_automatic = false;

  bool is_local() const { return open == nullptr; }
};

MYDIST_EXPORT std::vector<TransportRow> Transports();
// kInvalidArgument with the names there are.
MYDIST_EXPORT Result<TransportRow> FindTransport(const std::string& name);
// Adds one (extensions do); kInvalidArgument when the name is taken.
MYDIST_EXPORT Status RegisterTransport(TransportRow row);

// The transport called `name`, opened. kInternal with the reason when it cannot be.
MYDIST_EXPORT Result<BackendPlugin*> LoadPlugin(const std::string& name);

// The function `symbol` of lib/libmydist_<name>.so beside libmydist.so, opened with RTLD_NOW |
// RTLD_LOCAL and never closed. `not_built` as in TransportRow. kInternal with the reason when it
// cannot be opened, kVersionMismatch without the function or of another version of mydist.
MYDIST_EXPORT Result<void*> PluginFunction(const std::string& name, const std::string& not_built,
                                           const char* symbol);

// kVersionMismatch when `what` was compiled for another version of mydist than this library; null:
// it does not say for which.
MYDIST_EXPORT Status CheckCompiledFor(const std::string& what, const char* version);

}  // namespace mydist
