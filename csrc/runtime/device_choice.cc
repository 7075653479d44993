#include "runtime/device_choice.h"

#include <optional>
#include <utility>

#include "ops/device/lone_collectives.h"
#include "ops/device/staged_collectives.h"
#include "ops/hierarchical.h"
#include "ops/rank_ordered_collectives.h"
#include "ops/subset_transport.h"

namespace mydist {
namespace {

// A chunk keeps a rank's staging pipeline full: less, and what overlaps there ends at each of ours.
HierarchicalLimits LimitsFor(const HostGroups& groups, const StagingLimits& staging) {
  HierarchicalLimits limits;
  limits.chunk_bytes = groups.smallest() * staging.chunks_in_flight * staging.most_chunk_bytes;
  return limits;
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

DeviceRecord DeviceChoice::OwnRecord(const DeviceSeat& seat) const {
  const Config& config = *sources_.config;
  const Topology& topology = *sources_.topology;
  const Result<int> version = sources_.plugin->NcclVersion(places_);
  return MakeDeviceRecord({.nccl_version = version.ok() ? *version : 0,
                           .is_asked_to_share = config.nccl_shares_gpus,
                           .gpu_ipc = config.gpu_ipc,
                           .gpu = seat.device->identity(),
                           .host = config.nccl_host_id.empty()
                                       ? topology.hosts[static_cast<size_t>(topology.rank)]
                                       : config.nccl_host_id,
                           .why_not = version.ok() ? "" : version.status().message()});
}

// Not as for host memory: NCCL shares none, and with one rank on each host there still is a choice.
std::optional<HostGroups> DeviceChoice::TwoLevels(const std::vector<int>& ranks) const {
  const std::optional<bool>& asked = sources_.config->hierarchical_allreduce;
  if (!asked.value_or(true)) return std::nullopt;
  HostGroups groups = MakeHostGroups(sources_.topology->hosts, ranks, sources_.topology->rank);
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
    return DeviceAgreement{.nccl = {0, "one rank has nobody to exchange with"}, .ipc = {}};
  }
  const DeviceRecord own = OwnRecord(*members.seat);
  std::vector<DeviceRecord> records(ranks.size());
  const std::vector<int64_t> byte_counts(ranks.size(), sizeof(DeviceRecord));
  MYDIST_RETURN_IF_ERROR(members.on_host->Allgather(&own, records.data(), byte_counts));
  std::vector<std::string> hosts;
  for (const int rank : ranks) hosts.push_back(sources_.topology->hosts[static_cast<size_t>(rank)]);
  return DeviceAgreement{.nccl = NcclFor(records, ranks), .ipc = ChooseIpc(records, ranks, hosts)};
}

Result<IpcConnection> DeviceChoice::ConnectWithinHost(const DeviceMembers& members) const {
  return ConnectIpc(PeersOf(members));
}

DeviceParts DeviceChoice::MakeStaged(const DeviceMembers& members) const {
  DeviceParts parts;
  if (members.set->size() == 1) {
    parts.choices.push_back(std::make_unique<LoneCollectives>(members.seat->on_stream));
    return parts;
  }
  // All that Make gives support the same, whatever the size: the first does.
  auto on_host = sources_.on_host->Make(members.transport, members.set->ranks);
  parts.choices.push_back(std::make_unique<StagedCollectives>(
      members.index, std::move(on_host.front()), members.seat->staging));
  return parts;
}

Result<std::unique_ptr<Collectives>> DeviceChoice::Link(const DevicePeers& peers,
                                                        DeviceParts& parts) const {
  MYDIST_ASSIGN_OR_RETURN(DeviceConnection connection, sources_.plugin->Connect(peers, places_));
  parts.links.push_back(std::move(connection.link));
  return std::move(connection.collectives);
}

Result<DeviceParts> DeviceChoice::MakeOverNccl(const DeviceMembers& members) const {
  DeviceParts parts;
  std::unique_ptr<Collectives> over_nccl;
  if (auto groups = TwoLevels(members.set->ranks)) {
    MYDIST_ASSIGN_OR_RETURN(over_nccl, HostsFirst(members, *std::move(groups), parts));
  } else {
    MYDIST_ASSIGN_OR_RETURN(over_nccl, Link(PeersOf(members), parts));
  }
  parts.choices.push_back(std::move(over_nccl));
  parts.choices.push_back(std::move(MakeStaged(members).choices.front()));
  return parts;
}

Result<std::unique_ptr<Collectives>> DeviceChoice::HostsFirst(const DeviceMembers& members,
                                                              HostGroups groups,
                                                              DeviceParts& parts) const {
  const auto& set_ranks = members.set->ranks;
  const auto among = [&](const std::vector<int>& indices) -> Transport* {
    return parts.transports
        .emplace_back(std::make_unique<SubsetTransport>(members.transport, indices))
        .get();
  };
  std::vector<int> here;
  for (const int index : groups.own_members()) {
    here.push_back(set_ranks[static_cast<size_t>(index)]);
  }
  // The first, as above; nothing of it reaches another host.
  auto within = sources_.on_host->Make(among(groups.own_members()), here);
  parts.exchanges.push_back(std::move(within.front()));
  HierarchicalParts levels;
  MYDIST_ASSIGN_OR_RETURN(levels.local,
                          Link({.seat = members.seat->on_stream,
                                .rank = groups.place,
                                .size = static_cast<int>(here.size()),
                                .name = NameOf(members) + " on host " +
                                        sources_.topology->hosts[static_cast<size_t>(here.front())],
                                .exchange = parts.exchanges.back().get()},
                               parts));
  if (groups.place < groups.smallest()) {
    levels.cross = std::make_unique<StagedCollectives>(
        groups.host, std::make_unique<RankOrderedCollectives>(among(groups.Column(groups.place))),
        members.seat->staging);
  }
  levels.new_memory = [seat = members.seat->on_stream] {
    return std::make_unique<DeviceMemory>(seat);
  };
  const HierarchicalLimits limits = LimitsFor(groups, members.seat->staging->limits());
  return std::unique_ptr<Collectives>(
      std::make_unique<Hierarchical>(std::move(groups), std::move(levels), limits));
}

std::string DeviceChoice::Describe(const ProcessSet& set, int nccl_version) const {
  if (set.size() == 1) return "where they lie";
  if (nccl_version == 0) return "through host memory";
  const std::string name = "NCCL " + NcclVersionText(nccl_version);
  return TwoLevels(set.ranks) ? name + " inside each host, through host memory between hosts"
                              : name;
}

}  // namespace mydist
