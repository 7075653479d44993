#include "runtime/collectives_choice.h"

#include <utility>

#include "ops/device/staged_collectives.h"
#include "ops/hierarchical.h"
#include "ops/rank_ordered_collectives.h"
#include "ops/shm/shm_collectives.h"
#include "world/host_groups.h"

namespace mydist {

std::vector<std::unique_ptr<Collectives>> CollectivesChoice::Make(
    Transport* transport, const std::vector<int>& ranks) const {
  std::vector<std::unique_ptr<Collectives>> choices;
  if (auto sharing = SharingMemory(ranks)) choices.push_back(std::move(sharing));
  if (auto hosts_first = HostsFirst(transport, ranks)) choices.push_back(std::move(hosts_first));
  choices.push_back(std::make_unique<RankOrderedCollectives>(transport));
  return choices;
}

std::vector<std::unique_ptr<Collectives>> CollectivesChoice::MakeOnDevice(
    const DeviceSeat& seat, Transport* transport, const std::vector<int>& ranks) const {
  std::vector<std::unique_ptr<Collectives>> choices;
  // All that Make gives support the same, whatever the size: the first does.
  auto on_host = Make(transport, ranks);
  const int rank = transport == nullptr ? 0 : transport->rank();
  choices.push_back(
      std::make_unique<StagedCollectives>(rank, std::move(on_host.front()), seat.staging));
  return choices;
}

std::unique_ptr<Collectives> CollectivesChoice::SharingMemory(const std::vector<int>& ranks) const {
  if (shm_ == nullptr) return nullptr;
  auto members = shm_->IndicesOf(ranks);
  if (!members) return nullptr;
  return std::make_unique<shm::ShmCollectives>(shm_, *std::move(members));
}

std::unique_ptr<Collectives> CollectivesChoice::HostsFirst(Transport* transport,
                                                           const std::vector<int>& ranks) const {
  // What other ranks see depends on nothing but layout and settings, which are the same everywhere.
  if (!config_->hierarchical_allreduce.value_or(config_->shared_memory)) return nullptr;
  HostGroups groups = MakeHostGroups(topology_->hosts, ranks, topology_->rank);
  if (!groups.HasTwoLevels()) return nullptr;
  std::vector<int> here;
  for (const int index : groups.own_members()) here.push_back(ranks[static_cast<size_t>(index)]);
  auto local = here.size() > 1 ? SharingMemory(here) : nullptr;
  return std::make_unique<Hierarchical>(std::move(groups), transport, std::move(local));
}

}  // namespace mydist
