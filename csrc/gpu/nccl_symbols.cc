#include "gpu/nccl_symbols.h"

#include <vector>

#include "transport/factory.h"

namespace mydist::nccl {
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
    return Status::Internal("it is no NCCL: it has no function ncclGetVersion");
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
