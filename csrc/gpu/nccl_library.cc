#include "gpu/nccl_library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <string_view>
#include <vector>

#include "algorithms/device/device_plugin.h"

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

// RTLD_LOCAL: other libraries still find their own NCCL. torch, loaded later, takes this one, as
// both have the same name in the file.
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
    if (!library.ok())
      return library.status().WithContext(name + ", which this process has loaded");
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
  std::string tried = "not loaded in this process";
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

namespace {

// What the configuration of a communicator is laid out for; torch 2.11 comes with 2.28.
constexpr int kOldestVersion = CommConfig::kVersion;

// Takes functions out of a library and notes which are not there.
class Taker {
 public:
  explicit Taker(const SymbolLookup& lookup) : lookup_(lookup) {}

  template <typename Function>
  void Required(const char* name, Function& function) {
    Newer(name, function);
    if (function == nullptr) missing_.emplace_back(name);
  }

  template <typename Function>
  void Newer(const char* name, Function& function) {
    function = reinterpret_cast<Function>(lookup_(name));
  }

  const std::vector<std::string>& missing() const { return missing_; }

 private:
  const SymbolLookup& lookup_;
  std::vector<std::string> missing_;
};

void TakeRequired(Taker& taker, NcclApi& api) {
  taker.Required("ncclGetErrorString", api.GetErrorString);
  taker.Required("ncclGetUniqueId", api.GetUniqueId);
  taker.Required("ncclCommInitRankConfig", api.CommInitRankConfig);
  taker.Required("ncclCommFinalize", api.CommFinalize);
  taker.Required("ncclCommDestroy", api.CommDestroy);
  taker.Required("ncclCommAbort", api.CommAbort);
  taker.Required("ncclCommGetAsyncError", api.CommGetAsyncError);
  taker.Required("ncclGroupStart", api.GroupStart);
  taker.Required("ncclGroupEnd", api.GroupEnd);
  taker.Required("ncclAllReduce", api.AllReduce);
  taker.Required("ncclReduce", api.Reduce);
  taker.Required("ncclBroadcast", api.Broadcast);
  taker.Required("ncclAllGather", api.AllGather);
  taker.Required("ncclReduceScatter", api.ReduceScatter);
  taker.Required("ncclSend", api.Send);
  taker.Required("ncclRecv", api.Recv);
  taker.Required("ncclRedOpCreatePreMulSum", api.RedOpCreatePreMulSum);
  taker.Required("ncclRedOpDestroy", api.RedOpDestroy);
}

void TakeNewer(Taker& taker, NcclApi& api) {
  taker.Newer("ncclGetLastError", api.GetLastError);
  taker.Newer("ncclCommSplit", api.CommSplit);
  taker.Newer("ncclCommRegister", api.CommRegister);
  taker.Newer("ncclCommDeregister", api.CommDeregister);
  taker.Newer("ncclCommWindowRegister", api.CommWindowRegister);
  taker.Newer("ncclCommWindowDeregister", api.CommWindowDeregister);
  taker.Newer("ncclCommShrink", api.CommShrink);
  taker.Newer("ncclCommRevoke", api.CommRevoke);
}

Result<int> ReadVersion(const SymbolLookup& lookup) {
  const auto get_version = reinterpret_cast<Outcome (*)(int*)>(lookup("ncclGetVersion"));
  if (get_version == nullptr) {
    return Status::Internal("it is not NCCL: it has no function ncclGetVersion");
  }
  int version = 0;
  if (const Outcome outcome = get_version(&version); outcome != Outcome::kSuccess) {
    return Status::Internal("ncclGetVersion failed with code " +
                            std::to_string(static_cast<int>(outcome)));
  }
  if (version < kOldestVersion) {
    return Status::Internal("it is NCCL " + NcclVersionText(version) + ", expected " +
                            NcclVersionText(kOldestVersion) + " or newer");
  }
  return version;
}

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

Result<NcclApi> ReadNcclApi(const SymbolLookup& lookup) {
  NcclApi api;
  MYDIST_ASSIGN_OR_RETURN(api.version, ReadVersion(lookup));
  Taker taker(lookup);
  TakeRequired(taker, api);
  if (!taker.missing().empty()) {
    return Status::Internal("it is NCCL " + NcclVersionText(api.version) +
                            ", but has no function " + Joined(taker.missing()));
  }
  TakeNewer(taker, api);
  return api;
}

}  // namespace mydist::nccl
