#include "planner/device_agreement.h"

#include <algorithm>
#include <map>
#include <utility>

#include "algorithms/device/device_plugin.h"
#include "base/fixed_text.h"

namespace mydist {
namespace {

// The first that lets several ranks of a communicator have one GPU, when it is told to.
constexpr int kFirstToShareGpus = 23003;

using Records = std::span<const DeviceRecord>;
using Ranks = std::span<const int>;

std::string Rank(Ranks ranks, size_t index) { return "rank " + std::to_string(ranks[index]); }

// Each function says why NCCL cannot be used; empty: nothing is in the way.

std::string WhyLacking(Records records, Ranks ranks) {
  const auto lacks = [](const DeviceRecord& record) { return record.nccl_version == 0; };
  const auto first = std::find_if(records.begin(), records.end(), lacks);
  if (first == records.end()) return "";
  if (std::all_of(records.begin(), records.end(), lacks)) return TextOf(first->why_not);
  const auto index = static_cast<size_t>(first - records.begin());
  return Rank(ranks, index) + " has no NCCL, other ranks do: " + TextOf(first->why_not);
}

std::string WhyMixed(Records records, Ranks ranks) {
  for (size_t i = 1; i < records.size(); ++i) {
    if (records[i].nccl_version == records[0].nccl_version) continue;
    return Rank(ranks, 0) + " has NCCL " + NcclVersionText(records[0].nccl_version) + ", " +
           Rank(ranks, i) + " has " + NcclVersionText(records[i].nccl_version) +
           "; install the same on every host";
  }
  return "";
}

std::string WhyShared(Records records, Ranks ranks) {
  std::map<std::pair<decltype(DeviceRecord::host), decltype(DeviceRecord::gpu)>, size_t> first_on;
  for (size_t i = 0; i < records.size(); ++i) {
    const auto [entry, is_first] = first_on.try_emplace({records[i].host, records[i].gpu}, i);
    const size_t other = entry->second;
    const bool may = records[i].may_share_gpu != 0 && records[other].may_share_gpu != 0;
    if (is_first || may) continue;
    return Rank(ranks, other) + " and " + Rank(ranks, i) + " share GPU " + TextOf(records[i].gpu) +
           " of one host, and NCCL wants one for each (but " + NcclVersionText(kFirstToShareGpus) +
           " and newer with NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL_NVLS_ENABLE=0 on all ranks)";
  }
  return "";
}

}  // namespace

DeviceRecord MakeDeviceRecord(const DeviceTraits& traits) {
  DeviceRecord record;
  record.nccl_version = traits.nccl_version;
  record.may_share_gpu =
      traits.is_asked_to_share && traits.nccl_version >= kFirstToShareGpus ? 1 : 0;
  PutText(traits.gpu, record.gpu);
  PutText(traits.host, record.host);
  PutText(traits.why_not, record.why_not);
  return record;
}

NcclChoice ChooseNccl(Records records, Ranks ranks) {
  for (const auto& why : {WhyLacking, WhyMixed, WhyShared}) {
    if (std::string reason = why(records, ranks); !reason.empty()) return {0, std::move(reason)};
  }
  return {records[0].nccl_version, "every rank has it, and a GPU"};
}

}  // namespace mydist
