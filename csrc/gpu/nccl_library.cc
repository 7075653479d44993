#include "gpu/nccl_library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <string_view>

#include "gpu/nccl_symbols.h"

namespace mydist::nccl {
namespace {

constexpr const char* kFileName = "libnccl.so.2";
constexpr const char* kAdvice =
    "Install it (pip install nvidia-nccl-cu13, or nvidia-nccl-cu12 for CUDA 12; Debian: libnccl2), "
    "or name its file in MYDIST_NCCL_LIBRARY";

std::string LastError() {
  const char* error = dlerror();
  return error != nullptr ? error : "unknown dlopen error";
}

// The file that a function lies in.
std::string FileOf(void* function, const std::string& otherwise) {
  Dl_info info{};
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return otherwise;
  return info.dli_fname;
}

Result<NcclLibrary> Read(void* handle, const std::string& name) {
  Result<NcclApi> api = ReadNcclApi([&](const char* symbol) { return dlsym(handle, symbol); });
  if (!api.ok()) return api.status();
  return NcclLibrary{*api, FileOf(reinterpret_cast<void*>(api->GetUniqueId), name)};
}

// RTLD_LOCAL: whoever wants another NCCL finds theirs. torch, loaded later, takes this one, as both
// have the same name in the file.
Result<NcclLibrary> OpenFile(const std::string& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Status::Internal(LastError());
  Result<NcclLibrary> library = Read(handle, file);
  if (!library.ok()) dlclose(handle);
  return library.ok() ? std::move(library) : library.status().WithContext(file);
}

// What the process has. OK and empty when it has none; an error when it has one that is no use:
// a second one beside it would be worse.
Result<std::vector<NcclLibrary>> FindLoaded() {
  std::vector<std::string> candidates = LoadedCandidates();
  candidates.insert(candidates.begin(), kFileName);  // Whatever its path is.
  for (const std::string& name : candidates) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    if (dlsym(handle, "ncclGetVersion") == nullptr) {
      dlclose(handle);  // A plugin of NCCL, or a torch without.
      continue;
    }
    Result<NcclLibrary> library = Read(handle, name);
    if (!library.ok()) return library.status().WithContext(name + ", which this process has");
    return std::vector<NcclLibrary>{*std::move(library)};
  }
  return std::vector<NcclLibrary>{};
}

int NoteCandidates(dl_phdr_info* info, size_t, void* data) {
  auto* names = static_cast<std::vector<std::string>*>(data);
  if (info->dlpi_name != nullptr && *info->dlpi_name != '\0') names->emplace_back(info->dlpi_name);
  return 0;
}

}  // namespace

std::vector<std::string> LoadedCandidates() {
  std::vector<std::string> loaded;
  dl_iterate_phdr(NoteCandidates, &loaded);
  std::vector<std::string> candidates;
  for (const std::string_view prefix : {"libnccl", "libtorch_cuda"}) {
    for (const std::string& path : loaded) {
      if (path.substr(path.rfind('/') + 1).starts_with(prefix)) candidates.push_back(path);
    }
  }
  return candidates;
}

Result<NcclLibrary> NcclLibrary::Open(const NcclPlaces& places) {
  if (!places.path.empty()) {
    Result<NcclLibrary> named = OpenFile(places.path);
    if (named.ok()) return named;
    return Status::Internal("MYDIST_NCCL_LIBRARY='" + places.path +
                            "' cannot be used: " + named.status().message());
  }
  MYDIST_ASSIGN_OR_RETURN(const std::vector<NcclLibrary> loaded, FindLoaded());
  if (!loaded.empty()) return loaded.front();
  std::string tried = "not in this process";
  for (const std::string& folder : places.folders) {
    const std::string file = folder + "/" + kFileName;
    if (access(file.c_str(), F_OK) != 0) {
      tried += "; not in " + folder;
      continue;
    }
    Result<NcclLibrary> packaged = OpenFile(file);
    if (packaged.ok()) return packaged;
    tried += "; " + packaged.status().message();
  }
  Result<NcclLibrary> installed = OpenFile(kFileName);
  if (installed.ok()) return installed;
  return Status::Internal("no usable NCCL was found (" + tried + "; " +
                          installed.status().message() + "). " + kAdvice);
}

}  // namespace mydist::nccl
