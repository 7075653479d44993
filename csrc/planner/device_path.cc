#include "planner/device_path.h"

#include <algorithm>
#include <cstddef>
#include <thread>

#include "algorithms/device/staged_collectives.h"
#include "algorithms/hierarchical.h"
#include "algorithms/rank_ordered_collectives.h"
#include "base/log.h"
#include "transport/subset_transport.h"

namespace mydist {

namespace {

template <size_t kSize>
void PutText(const std::string& text, std::array<char, kSize>& field) {
  field.fill('\0');
  text.copy(field.data(), kSize - 1);
}

// What a peer has sent may lack its end.
template <size_t kSize>
std::string TextOf(const std::array<char, kSize>& field) {
  return {field.begin(), std::find(field.begin(), field.end(), '\0')};
}

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
           ". NCCL needs one GPU for each rank. NCCL " + NcclVersionText(kFirstToShareGpus) +
           " or newer can share it: set NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL_NVLS_ENABLE=0 on "
           "all ranks";
  }
  return "";
}

}  // namespace

void DeviceLinks::Add(std::shared_ptr<DeviceLink> link) {
  Status aborted;
  {
    MutexLock lock(mutex_);
    links_.push_back(link);
    aborted = aborted_;
  }
  if (!aborted.ok()) link->Abort(aborted);
}

void DeviceLinks::Remove(const DeviceLink* link) {
  MutexLock lock(mutex_);
  std::erase_if(links_, [link](const auto& each) { return each.get() == link; });
}

bool DeviceLinks::empty() const {
  MutexLock lock(mutex_);
  return links_.empty();
}

DeviceLinks::List DeviceLinks::Snapshot() const {
  MutexLock lock(mutex_);
  return links_;
}

Status DeviceLinks::Check() const {
  for (const auto& link : Snapshot()) MYDIST_RETURN_IF_ERROR(link->Check());
  return Status::Ok();
}

void DeviceLinks::Abort(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (aborted_.ok()) aborted_ = why;
  }
  // At the same time, as DeviceLink wants it.
  const List links = Snapshot();
  std::vector<std::thread> others;
  for (size_t i = 1; i < links.size(); ++i) {
    others.emplace_back([&link = links[i], &why] { link->Abort(why); });
  }
  if (!links.empty()) links.front()->Abort(why);
  for (std::thread& other : others) other.join();
}

void DeviceLinks::Close(TimePoint deadline) {
  for (const auto& link : Snapshot()) {
    if (const Status closed = link->Close(deadline, nullptr); !closed.ok()) {
      MYDIST_LOG(kDebug) << "closing: " << closed.message();
      return Abort(closed);
    }
  }
}

namespace {

Status WaitFor(const DeviceSeat& seat) {
  MYDIST_ASSIGN_OR_RETURN(const EventPointer last, seat.device->Record(seat.on_stream.stream));
  return seat.device->Block(*last);
}

Status NoGpus(const std::string& what) {
  return Status::Internal(
      what +
      " needs GPU support, which this job does not have; mydistrun --check-build shows the reason");
}

}  // namespace

DeviceSeats::~DeviceSeats() {
  for (const auto& [index, seat] : seats_) {
    if (const Status waited = WaitFor(seat); !waited.ok()) {
      MYDIST_LOG(kDebug) << "closing GPU " << index << ": " << waited.message();
    }
  }
}

Result<DeviceSeat*> DeviceSeats::At(int index) {
  const auto found = seats_.find(index);
  if (found != seats_.end()) return &found->second;
  if (plugin_ == nullptr) return NoGpus("a tensor on GPU " + std::to_string(index));
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, plugin_->OpenDevice(index));
  MYDIST_ASSIGN_OR_RETURN(const StreamHandle stream, device->CreateStream());
  const StreamSeat on_stream{device.get(), stream, watch_};
  MYDIST_ASSIGN_OR_RETURN(auto staging, StagingPipeline::Open(on_stream));
  DeviceSeat seat{.device = std::move(device),
                  .on_stream = on_stream,
                  .fusion_memory = DeviceMemory(on_stream),
                  .staging = std::move(staging)};
  return &seats_.emplace(index, std::move(seat)).first->second;
}

Result<int> DeviceSeats::Home(int local_rank) const {
  if (!seats_.empty()) return seats_.begin()->first;
  if (plugin_ == nullptr) return NoGpus("a collective of tensors on GPUs");
  MYDIST_ASSIGN_OR_RETURN(const int count, plugin_->DeviceCount());
  return local_rank % count;
}

Result<bool> DeviceSeats::AreIdle() {
  bool are_idle = true;
  for (auto& [index, seat] : seats_) {
    if (seat.last_batch == nullptr) continue;
    MYDIST_ASSIGN_OR_RETURN(const bool is_over, seat.device->IsOver(*seat.last_batch));
    if (is_over) seat.last_batch = nullptr;
    are_idle = are_idle && is_over;
  }
  return are_idle;
}

int64_t DeviceSeats::MostStagedChunks() const {
  int64_t most = 0;
  for (const auto& [index, seat] : seats_) most = std::max(most, seat.staging->most_in_flight());
  return most;
}

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
  return {records[0].nccl_version, "every rank has NCCL and a GPU"};
}

namespace {

// A chunk keeps a rank's staging pipeline full: less, and what overlaps there ends at each of ours.
HierarchicalLimits LimitsFor(const HostGroups& groups, const StagingLimits& staging) {
  return {.chunk_bytes = groups.smallest() * staging.chunks_in_flight * staging.most_chunk_bytes};
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
      "NCCL_COMM_BLOCKING=1 makes NCCL's calls wait for all ranks, so a lost rank would go "
      "unnoticed; unset it");
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
  if (ranks.size() == 1) return NcclChoice{0, "the process set has one rank"};
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
  if (set.size() == 1) return "in place";
  if (agreed.version == 0) return "through host memory";
  const std::string nccl = "NCCL " + NcclVersionText(agreed.version);
  return TwoLevels(set.ranks) ? nccl + " inside each host, through host memory between hosts"
                              : nccl;
}

DeviceTeam::DeviceTeam(const Surroundings& surroundings, DeviceSeat* seat,
                       const DeviceMembers& members)
    : surroundings_(surroundings),
      seat_(seat),
      members_(members),
      parts_(surroundings.choice->MakeStaged(members)) {}

DeviceTeam::~DeviceTeam() {
  for (const auto& link : parts_.links) surroundings_.links->Remove(link.get());
  // What fails here has nothing on the stream any more.
  const Result<EventPointer> last = seat_->device->Record(seat_->on_stream.stream);
  if (last.ok()) static_cast<void>(seat_->device->Block(**last));
}

// However long it takes: handles have completed whose results are still to come.
Status DeviceTeam::Close() {
  for (const auto& link : parts_.links) {
    MYDIST_RETURN_IF_ERROR(link->Close(kNever, seat_->on_stream.watch));
  }
  return Status::Ok();
}

Result<Collectives*> DeviceTeam::For(const BatchTraits& traits) {
  // Two ranks alone cannot agree for all.
  if (!has_agreed_ && traits.op != OpKind::kSendReceive) MYDIST_RETURN_IF_ERROR(Agree());
  return ChooseFor(traits, parts_.choices);
}

Status DeviceTeam::Agree() {
  MYDIST_ASSIGN_OR_RETURN(const NcclChoice agreed, surroundings_.choice->Agree(members_));
  if (agreed.version != 0) {
    MYDIST_ASSIGN_OR_RETURN(parts_, surroundings_.choice->MakeOverNccl(members_));
    for (const auto& link : parts_.links) surroundings_.links->Add(link);
  }
  has_agreed_ = true;
  Announce(agreed);
  return Status::Ok();
}

void DeviceTeam::Announce(const NcclChoice& agreed) const {
  const ProcessSet& set = *members_.set;
  const std::string path = surroundings_.choice->Describe(set, agreed);
  const bool is_global = set.id == kGlobalProcessSet;
  surroundings_.facts->Put(
      set.id,
      {is_global ? "GPU path" : "GPU path of set " + std::to_string(set.id), path, agreed.why});
  if (members_.index != 0) return;
  const std::string line = "tensors on GPUs of process set " + std::to_string(set.id) +
                           " are reduced " + (agreed.version != 0 ? "over " : "") + path + ": " +
                           agreed.why;
  if (agreed.version == 0 && set.size() > 1) {
    MYDIST_LOG(kWarning) << line;
  } else {
    MYDIST_LOG(kInfo) << line;
  }
}

}  // namespace mydist
