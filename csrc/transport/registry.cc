#include "transport/registry.h"

#include <dlfcn.h>

#include <map>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/registry.h"
#include "mydist/build_config.h"

namespace mydist {
namespace {

constexpr const char* kPluginVersionSymbol = "mydist_plugin_version";

// The folder libmydist.so itself lies in: plugins are installed beside it, wherever that is.
std::string LibraryFolder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&LibraryFolder), &info) == 0 || info.dli_fname == nullptr) {
    return ".";
  }
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

Result<BackendPlugin*> OpenPlugin(const std::string& name, const std::string& not_built) {
  MYDIST_ASSIGN_OR_RETURN(void* const function, PluginFunction(name, not_built, kPluginSymbol));
  BackendPlugin* const plugin = reinterpret_cast<BackendPlugin* (*)()>(function)();
  MYDIST_LOG(kDebug) << "loaded backend " << name << " (" << plugin->Description() << ")";
  return plugin;
}

// A transport in a library of its own, which is opened when it is asked for.
TransportRow InLibrary(const std::string& name, const std::string& not_built) {
  return {.name = name, .not_built = not_built, .open = [name, not_built] {
            struct Opened {
              Mutex mutex;
              std::map<std::string, Result<BackendPlugin*>> plugins MYDIST_GUARDED_BY(mutex);
            };
            // Never destroyed: plugins stay open until the process ends, whatever the order of exit
            // handlers.
            static auto* const kOpened = new Opened;
            MutexLock lock(kOpened->mutex);
            auto found = kOpened->plugins.find(name);
            if (found == kOpened->plugins.end()) {
              found = kOpened->plugins.emplace(name, OpenPlugin(name, not_built)).first;
            }
            return found->second;
          }};
}

Registry<TransportRow>& Table() {
  using namespace build_config;
  static auto* const kTable = [] {
    TransportRow mpi = InLibrary("mpi", kMpiBuilt ? "" : kMpiReason);
    mpi.numbers_ranks = true;
    TransportRow gloo = InLibrary("gloo", kGlooBuilt ? "" : kGlooReason);
    gloo.is_automatic = true;
    return new Registry<TransportRow>(
        "MYDIST_CONTROLLER",
        {{.name = "local", .is_automatic = true}, std::move(mpi), std::move(gloo)});
  }();
  return *kTable;
}

}  // namespace

Result<std::vector<Bytes>> BootstrapRound(const BootstrapExchange& exchange, int size,
                                          const Bytes& mine) {
  MYDIST_ASSIGN_OR_RETURN(std::vector<Bytes> all, exchange(mine));
  if (all.size() != static_cast<size_t>(size)) {
    return Status::Internal("the rendezvous returned data of " + std::to_string(all.size()) +
                            " ranks, expected " + std::to_string(size) +
                            "; is a rendezvous of another job still running?");
  }
  return all;
}

std::vector<TransportRow> Transports() { return Table().All(); }

Result<TransportRow> FindTransport(const std::string& name) { return Table().Find(name); }

Status RegisterTransport(TransportRow row) {
  if (row.open == nullptr) {
    return Status::InvalidArgument("the transport '" + row.name +
                                   "' has no function that opens it; expected TransportRow::open");
  }
  MYDIST_RETURN_IF_ERROR(CheckRowName("transport", row.name));
  return Table().Add(std::move(row));
}

Result<BackendPlugin*> LoadPlugin(const std::string& name) {
  MYDIST_ASSIGN_OR_RETURN(const TransportRow row, FindTransport(name));
  if (row.is_local()) {
    return Status::Internal("backend '" + name +
                            "' is built in and is not a plugin: its ranks share memory");
  }
  return row.open();
}

Result<void*> PluginFunction(const std::string& name, const std::string& not_built,
                             const char* symbol) {
  if (!not_built.empty()) {
    return Status::Internal("backend '" + name + "' was " + not_built);
  }
  const std::string path = LibraryFolder() + "/libmydist_" + name + ".so";
  // RTLD_LOCAL hides the plugin's MPI or Gloo from other libraries, and RTLD_NOW makes a missing
  // symbol an error here and not a crash later. No RTLD_DEEPBIND: it would bind the plugin past a
  // preloaded allocator or sanitizer, so memory would be freed by the wrong one.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    return Status::Internal("backend '" + name + "' cannot be loaded: " +
                            (error != nullptr ? error : "unknown dlopen error in " + path));
  }
  const auto version = reinterpret_cast<const char* (*)()>(dlsym(library, kPluginVersionSymbol));
  MYDIST_RETURN_IF_ERROR(CheckCompiledFor("backend '" + name + "' (" + path + ")",
                                          version == nullptr ? nullptr : version()));
  void* const function = dlsym(library, symbol);
  if (function == nullptr) {
    return Status::VersionMismatch("backend '" + name + "': " + path + " does not export " +
                                   symbol + "; install mydist again.");
  }
  return function;
}

Status CheckCompiledFor(const std::string& what, const char* version) {
  if (version != nullptr && std::string_view(version) == build_config::kVersion) {
    return Status::Ok();
  }
  const std::string other =
      version == nullptr ? "an older version of mydist" : std::string("mydist ") + version;
  return Status::VersionMismatch(what + " was compiled for " + other +
                                 ", and libmydist.so is mydist " + build_config::kVersion +
                                 "; install mydist again.");
}

}  // namespace mydist
