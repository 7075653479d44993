#include "algorithms/registry.h"

#include <utility>

#include "algorithms/hierarchical.h"
#include "algorithms/rank_ordered_collectives.h"
#include "algorithms/shm/shm_collectives.h"
#include "base/registry.h"

namespace mydist {
namespace {

HostGroups GroupsOf(const AlgorithmSite& site) {
  return MakeHostGroups(site.topology.hosts, site.ranks, site.topology.rank);
}

// Null when the ranks do not all share memory with us.
std::unique_ptr<Collectives> SharingMemory(shm::ShmPort* shm, const std::vector<int>& ranks) {
  if (shm == nullptr) return nullptr;
  auto members = shm->IndicesOf(ranks);
  if (!members) return nullptr;
  return std::make_unique<shm::ShmCollectives>(shm, *std::move(members));
}

// Null when there are no two levels, or only one is wanted.
std::unique_ptr<Collectives> HostsFirst(const AlgorithmSite& site) {
  // What other ranks see depends on nothing but layout and settings, which are the same everywhere.
  const bool is_wanted = site.config.algorithm == "hierarchical" ||
                         site.config.hierarchical_allreduce.value_or(site.config.shared_memory);
  HostGroups groups = GroupsOf(site);
  if (!is_wanted || !groups.HasTwoLevels()) return nullptr;
  std::vector<int> here;
  for (const int index : groups.own_members()) {
    here.push_back(site.ranks[static_cast<size_t>(index)]);
  }
  auto local = here.size() > 1 ? SharingMemory(site.shm, here) : nullptr;
  return std::make_unique<Hierarchical>(std::move(groups), site.transport, std::move(local));
}

Registry<AlgorithmRow>& Table() {
  static auto* const kTable = new Registry<AlgorithmRow>(
      "MYDIST_ALGORITHM",
      {{.name = "shared_memory",
        .make = [](const AlgorithmSite& site) { return SharingMemory(site.shm, site.ranks); },
        .keeps_rank_order = true},
       {.name = "hierarchical", .make = HostsFirst, .keeps_rank_order = true},
       {.name = "flat",
        .make =
            [](const AlgorithmSite& site) {
              return std::make_unique<RankOrderedCollectives>(site.transport, RankOrderedLimits{},
                                                              GroupsOf(site));
            },
        .keeps_rank_order = true}});
  return *kTable;
}

}  // namespace

std::vector<AlgorithmRow> Algorithms() { return Table().All(); }

Result<AlgorithmRow> FindAlgorithm(const std::string& name) { return Table().Find(name); }

Status RegisterAlgorithm(AlgorithmRow row) {
  if (row.make == nullptr) {
    return Status::InvalidArgument("the algorithm '" + row.name +
                                   "' has no function that makes it; expected AlgorithmRow::make");
  }
  MYDIST_RETURN_IF_ERROR(CheckRowName("algorithm", row.name));
  return Table().Add(std::move(row));
}

}  // namespace mydist
