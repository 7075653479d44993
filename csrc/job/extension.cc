#include "job/extension.h"

#include <dlfcn.h>

#include <map>

#include "base/mutex.h"

namespace mydist {
namespace {

Status Load(const std::string& file) {
  const std::string who = "MYDIST_PLUGINS: " + file;
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    return Status::InvalidArgument(
        who + " cannot be loaded: " + (error != nullptr ? error : "unknown dlopen error"));
  }
  const auto version = reinterpret_cast<int (*)()>(dlsym(library, kExtensionVersionSymbol));
  const auto add = reinterpret_cast<void (*)(Status*)>(dlsym(library, kExtensionSymbol));
  if (version == nullptr || add == nullptr) {
    return Status::InvalidArgument(who + " is not an extension of mydist: it does not export " +
                                   kExtensionVersionSymbol + " and " + kExtensionSymbol);
  }
  if (version() != kExtensionVersion) {
    return Status::VersionMismatch(who + " was compiled for version " + std::to_string(version()) +
                                   " of the extension interface, this mydist has version " +
                                   std::to_string(kExtensionVersion) + "; compile it again");
  }
  Status status;
  add(&status);
  return status.WithContext(who);
}

struct Loaded {
  Mutex mutex;
  std::map<std::string, Status> outcomes MYDIST_GUARDED_BY(mutex);
};

}  // namespace

Status LoadExtensions(const std::vector<std::string>& files) {
  // Never destroyed: extensions stay loaded until the process ends.
  static auto* const kLoaded = new Loaded;
  MutexLock lock(kLoaded->mutex);
  for (const std::string& file : files) {
    auto found = kLoaded->outcomes.find(file);
    if (found == kLoaded->outcomes.end()) {
      found = kLoaded->outcomes.emplace(file, Load(file)).first;
    }
    MYDIST_RETURN_IF_ERROR(found->second);
  }
  return Status::Ok();
}

Result<Config> ConfigWithExtensions() {
  MYDIST_ASSIGN_OR_RETURN(const Config first, Config::FromEnv());
  if (first.plugins.empty()) return first;
  MYDIST_RETURN_IF_ERROR(LoadExtensions(first.plugins));
  return Config::FromEnv();
}

}  // namespace mydist
