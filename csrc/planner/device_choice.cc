#include "planner/device_choice.h"

#include <utility>

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
                           .gpu = members.seat->device->identity(),
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

Result<NcclChoice> DeviceChoice::Agree(const DeviceMembers& members) const {
  const std::vector<int>& ranks = members.set->ranks;
  if (ranks.size() == 1) return NcclChoice{0, "one rank has nobody to exchange with"};
  const DeviceRecord own = OwnRecord(members);
  std::vector<DeviceRecord> records(ranks.size());
  const std::vector<int64_t> byte_counts(ranks.size(), sizeof(DeviceRecord));
  MYDIST_RETURN_IF_ERROR(members.on_host->Allgather(&own, records.data(), byte_counts));
  return NcclFor(records, ranks);
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

Result<DeviceParts> DeviceChoice::MakeOverNccl(const DeviceMembers& members) const {
  DeviceParts parts;
  auto groups = TwoLevels(members.set->ranks);
  MYDIST_ASSIGN_OR_RETURN(auto over_nccl, groups ? HostsFirst(members, *std::move(groups), parts)
                                                 : Link(PeersOf(members), parts));
  parts.choices.push_back(std::move(over_nccl));
  parts.choices.push_back(std::move(MakeStaged(members).choices.front()));
  return parts;
}

Result<std::unique_ptr<Collectives>> DeviceChoice::WithinHost(const DeviceMembers& members,
                                                              const HostGroups& groups,
                                                              DeviceParts& parts) const {
  Transport* const transport = Among(groups.own_members(), members, parts);
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
                                                              DeviceParts& parts) const {
  HierarchicalParts levels;
  MYDIST_ASSIGN_OR_RETURN(levels.local, WithinHost(members, groups, parts));
  if (groups.place < groups.smallest()) {
    Transport* const column = Among(groups.Column(groups.place), members, parts);
    levels.cross = std::make_unique<StagedCollectives>(
        groups.host, std::make_unique<RankOrderedCollectives>(column), members.seat->staging);
  }
  levels.new_memory = [seat = members.seat->on_stream] {
    return std::make_unique<DeviceMemory>(seat);
  };
  const HierarchicalLimits limits = LimitsFor(groups, members.seat->staging->limits());
  return std::unique_ptr<Collectives>(
      std::make_unique<Hierarchical>(std::move(groups), std::move(levels), limits));
}

std::string DeviceChoice::Describe(const ProcessSet& set, const NcclChoice& agreed) const {
  if (set.size() == 1) return "where they lie";
  if (agreed.version == 0) return "through host memory";
  const std::string nccl = "NCCL " + NcclVersionText(agreed.version);
  return TwoLevels(set.ranks) ? nccl + " inside each host, through host memory between hosts"
                              : nccl;
}

}  // namespace mydist
