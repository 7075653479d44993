#include "planner/device_choice.h"

#include <optional>
#include <utility>

#include "algorithms/device/device_space.h"
#include "algorithms/device/lone_collectives.h"
#include "algorithms/device/staged_collectives.h"
#include "algorithms/hierarchical.h"
#include "algorithms/rank_ordered_collectives.h"
#include "transport/subset_transport.h"

namespace mydist {
namespace {

// A chunk keeps a rank's staging pipeline full: less, and what overlaps there ends at each of ours.
HierarchicalLimits LimitsFor(const HostGroups& groups, const StagingLimits& staging) {
  HierarchicalLimits limits;
  limits.chunk_bytes = groups.smallest() * staging.chunks_in_flight * staging.most_chunk_bytes;
  return limits;
}

// Sums of a round wait for the GPU once: fewer rounds, and as much less to wait for.
constexpr RankOrderedLimits kDirectLimits{.scratch_bytes = int64_t{32} << 20};

std::unique_ptr<Collectives> MakeDirect(Transport* transport, const StreamSeat& seat, bool folds) {
  return std::make_unique<RankOrderedCollectives>(transport, kDirectLimits,
                                                  std::make_unique<DeviceSpace>(seat, folds));
}

// Some members of the set.
Transport* Among(const std::vector<int>& indices, const DeviceMembers& members,
                 DeviceParts& parts) {
  return parts.transports
      .emplace_back(std::make_unique<SubsetTransport>(members.transport, indices))
      .get();
}

std::string NameOf(const DeviceMembers& members) {
  return "process set " + std::to_string(members.set->id);
}

DevicePeers PeersOf(const DeviceMembers& members) {
  return {.seat = members.seat->on_stream,
          .rank = members.index,
          .size = members.set->size(),
          .name = NameOf(members),
          .exchange = members.on_host};
}

}  // namespace

DeviceChoice::DeviceChoice(Sources sources)
    : sources_(std::move(sources)), places_{sources_.config->nccl_library, sources_.nccl_folders} {}

Result<int> DeviceChoice::NcclVersion() const {
  if (!sources_.config->nccl_blocks) return sources_.plugin->NcclVersion(places_);
  return Status::Internal(
      "NCCL_COMM_BLOCKING=1 makes NCCL's calls wait for all ranks, so that a "
      "lost one could not be noticed; unset it");
}

DeviceRecord DeviceChoice::OwnRecord(const DeviceMembers& members) const {
  const Config& config = *sources_.config;
  const Topology& topology = *sources_.topology;
  const Result<int> version = NcclVersion();
  return MakeDeviceRecord({.nccl_version = version.ok() ? *version : 0,
                           .is_asked_to_share = config.nccl_shares_gpus,
                           .gpu_ipc = config.gpu_ipc,
                           .takes_device_memory = members.transport->TakesDeviceMemory(),
                           .gpu = members.seat->device->identity(),
                           .host = config.nccl_host_id.empty()
                                       ? topology.hosts[static_cast<size_t>(topology.rank)]
                                       : config.nccl_host_id,
                           .why_not = version.ok() ? "" : version.status().message()});
}

HostGroups DeviceChoice::GroupsOf(const std::vector<int>& ranks) const {
  return MakeHostGroups(sources_.topology->hosts, ranks, sources_.topology->rank);
}

// Not as for host memory: NCCL shares none, and with one rank on each host there still is a choice.
std::optional<HostGroups> DeviceChoice::TwoLevels(const std::vector<int>& ranks) const {
  const std::optional<bool>& asked = sources_.config->hierarchical_allreduce;
  if (!asked.value_or(true)) return std::nullopt;
  HostGroups groups = GroupsOf(ranks);
  const bool has = asked.has_value() ? groups.host_count() > 1 : groups.HasTwoLevels();
  return has ? std::optional(std::move(groups)) : std::nullopt;
}

// With one rank on each host the way between hosts is all there is of two levels.
NcclChoice DeviceChoice::NcclFor(std::span<const DeviceRecord> records,
                                 const std::vector<int>& ranks) const {
  const std::optional<HostGroups> groups = TwoLevels(ranks);
  if (groups && !groups->HasTwoLevels()) {
    return {0, "MYDIST_HIERARCHICAL_ALLREDUCE=1, and each host has one rank"};
  }
  return ChooseNccl(records, ranks);
}

Result<DeviceAgreement> DeviceChoice::Agree(const DeviceMembers& members) const {
  const std::vector<int>& ranks = members.set->ranks;
  if (ranks.size() == 1) {
    return DeviceAgreement{.nccl = {0, "one rank has nobody to exchange with"}};
  }
  const DeviceRecord own = OwnRecord(members);
  std::vector<DeviceRecord> records(ranks.size());
  const std::vector<int64_t> byte_counts(ranks.size(), sizeof(DeviceRecord));
  MYDIST_RETURN_IF_ERROR(members.on_host->Allgather(&own, records.data(), byte_counts));
  std::vector<std::string> hosts;
  for (const int rank : ranks) hosts.push_back(sources_.topology->hosts[static_cast<size_t>(rank)]);
  return DeviceAgreement{.nccl = NcclFor(records, ranks),
                         .ipc = ChooseIpc(records, ranks, hosts),
                         .direct = ChooseDirect(records)};
}

Result<IpcConnection> DeviceChoice::ConnectWithinHost(const DeviceMembers& members,
                                                      GpuIpcChoice use) const {
  return ConnectIpc(PeersOf(members), use == GpuIpcChoice::kOn);
}

DeviceParts DeviceChoice::MakeStaged(const DeviceMembers& members) const {
  DeviceParts parts;
  if (members.set->size() == 1) {
    parts.choices.push_back(std::make_unique<LoneCollectives>(members.seat->on_stream));
    return parts;
  }
  auto on_host = sources_.on_host->Make(members.transport, members.set->ranks);
  parts.choices.push_back(std::make_unique<StagedCollectives>(
      members.index, std::make_unique<FirstOf>(std::move(on_host)), members.seat->staging));
  return parts;
}

Result<std::unique_ptr<Collectives>> DeviceChoice::Link(const DevicePeers& peers,
                                                        DeviceParts& parts) const {
  MYDIST_ASSIGN_OR_RETURN(DeviceConnection connection, sources_.plugin->Connect(peers, places_));
  parts.links.push_back(std::move(connection.link));
  return std::move(connection.collectives);
}

Result<DeviceParts> DeviceChoice::Make(const DeviceMembers& members,
                                       const DeviceAgreement& agreed) const {
  DeviceParts parts;
  const bool over_nccl = agreed.nccl.version != 0;
  auto groups = TwoLevels(members.set->ranks);
  const bool has_two_levels = groups && groups->HasTwoLevels();
  if (has_two_levels && (over_nccl || agreed.direct)) {
    MYDIST_ASSIGN_OR_RETURN(auto hosts_first,
                            HostsFirst(members, *std::move(groups), agreed, parts));
    parts.choices.push_back(std::move(hosts_first));
  } else if (over_nccl) {
    MYDIST_ASSIGN_OR_RETURN(auto between_all, Link(PeersOf(members), parts));
    parts.choices.push_back(std::move(between_all));
  }
  if (agreed.direct) {
    const bool folds = KeepsOrderOfRanks(members.set->ranks);
    parts.choices.push_back(MakeDirect(members.transport, members.seat->on_stream, folds));
  }
  parts.choices.push_back(std::move(MakeStaged(members).choices.front()));
  return parts;
}

Result<std::unique_ptr<Collectives>> DeviceChoice::WithinHost(const DeviceMembers& members,
                                                              const HostGroups& groups,
                                                              const DeviceAgreement& agreed,
                                                              DeviceParts& parts) const {
  Transport* const transport = Among(groups.own_members(), members, parts);
  if (agreed.nccl.version == 0) return MakeDirect(transport, members.seat->on_stream, true);
  std::vector<int> here;
  for (const int index : groups.own_members()) {
    here.push_back(members.set->ranks[static_cast<size_t>(index)]);
  }
  // As for host memory; nothing of it reaches another host.
  parts.exchanges.push_back(std::make_unique<FirstOf>(sources_.on_host->Make(transport, here)));
  return Link({.seat = members.seat->on_stream,
               .rank = groups.place,
               .size = static_cast<int>(here.size()),
               .name = NameOf(members) + " on host " +
                       sources_.topology->hosts[static_cast<size_t>(here.front())],
               .exchange = parts.exchanges.back().get()},
              parts);
}

Result<std::unique_ptr<Collectives>> DeviceChoice::HostsFirst(const DeviceMembers& members,
                                                              HostGroups groups,
                                                              const DeviceAgreement& agreed,
                                                              DeviceParts& parts) const {
  HierarchicalParts levels;
  MYDIST_ASSIGN_OR_RETURN(levels.local, WithinHost(members, groups, agreed, parts));
  if (groups.place < groups.smallest()) {
    Transport* const column = Among(groups.Column(groups.place), members, parts);
    levels.cross = agreed.direct
                       ? MakeDirect(column, members.seat->on_stream, true)
                       : std::make_unique<StagedCollectives>(
                             groups.host, std::make_unique<RankOrderedCollectives>(column),
                             members.seat->staging);
  }
  levels.new_memory = [seat = members.seat->on_stream] {
    return std::make_unique<DeviceMemory>(seat);
  };
  const HierarchicalLimits limits = LimitsFor(groups, members.seat->staging->limits());
  return std::unique_ptr<Collectives>(
      std::make_unique<Hierarchical>(std::move(groups), std::move(levels), limits));
}

// Sums of several hosts with several ranks have an order that a fold by ranks does not keep.
bool DeviceChoice::KeepsOrderOfRanks(const std::vector<int>& ranks) const {
  return !GroupsOf(ranks).HasTwoLevels();
}

// With two levels between hosts only, where each has one rank.
bool DeviceChoice::ReducesDirectly(const ProcessSet& set, const DeviceAgreement& agreed) const {
  return agreed.direct && (TwoLevels(set.ranks).has_value() || KeepsOrderOfRanks(set.ranks));
}

std::string DeviceChoice::Describe(const ProcessSet& set, const DeviceAgreement& agreed) const {
  if (set.size() == 1) return "where they lie";
  const std::string network =
      ReducesDirectly(set, agreed) ? "by CUDA-aware MPI" : "through host memory";
  if (agreed.nccl.version == 0) return network;
  const std::string nccl = "NCCL " + NcclVersionText(agreed.nccl.version);
  return TwoLevels(set.ranks) ? nccl + " inside each host, " + network + " between hosts" : nccl;
}

}  // namespace mydist
