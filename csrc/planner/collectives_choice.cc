#include "planner/collectives_choice.h"

#include <set>
#include <string>
#include <utility>

#include "algorithms/hierarchical.h"
#include "algorithms/rank_ordered_collectives.h"
#include "algorithms/shm/shm_collectives.h"
#include "base/log.h"
#include "transport/shm_vote_board.h"

namespace mydist {

Result<Collectives*> ChooseFor(const BatchTraits& traits,
                               const std::vector<std::unique_ptr<Collectives>>& choices) {
  for (const auto& collectives : choices) {
    if (collectives->Supports(traits)) return collectives.get();
  }
  return Status::Internal("no backend of this job can run " + std::string(OpKindName(traits.op)) +
                          " of " + std::string(DataTypeName(traits.dtype)) + " on device " +
                          std::to_string(traits.device));
}

std::vector<std::unique_ptr<Collectives>> CollectivesChoice::Make(
    Transport* transport, const std::vector<int>& ranks) const {
  std::vector<std::unique_ptr<Collectives>> choices;
  if (auto sharing = SharingMemory(ranks)) choices.push_back(std::move(sharing));
  if (auto hosts_first = HostsFirst(transport, ranks)) choices.push_back(std::move(hosts_first));
  choices.push_back(
      std::make_unique<RankOrderedCollectives>(transport, RankOrderedLimits{}, GroupsOf(ranks)));
  return choices;
}

HostGroups CollectivesChoice::GroupsOf(const std::vector<int>& ranks) const {
  return MakeHostGroups(topology_->hosts, ranks, topology_->rank);
}

std::optional<HostGroups> CollectivesChoice::TwoLevels(const std::vector<int>& ranks) const {
  // What other ranks see depends on nothing but layout and settings, which are the same everywhere.
  if (!config_->hierarchical_allreduce.value_or(config_->shared_memory)) return std::nullopt;
  HostGroups groups = GroupsOf(ranks);
  if (!groups.HasTwoLevels()) return std::nullopt;
  return groups;
}

std::unique_ptr<Collectives> CollectivesChoice::SharingMemory(const std::vector<int>& ranks) const {
  if (shm_ == nullptr) return nullptr;
  auto members = shm_->IndicesOf(ranks);
  if (!members) return nullptr;
  return std::make_unique<shm::ShmCollectives>(shm_, *std::move(members));
}

std::unique_ptr<Collectives> CollectivesChoice::HostsFirst(Transport* transport,
                                                           const std::vector<int>& ranks) const {
  std::optional<HostGroups> groups = TwoLevels(ranks);
  if (!groups) return nullptr;
  std::vector<int> here;
  for (const int index : groups->own_members()) here.push_back(ranks[static_cast<size_t>(index)]);
  auto local = here.size() > 1 ? SharingMemory(here) : nullptr;
  return std::make_unique<Hierarchical>(*std::move(groups), transport, std::move(local));
}

std::unique_ptr<VoteBoard> ChooseVoteBoard(const Config& config, const Topology& topology,
                                           const VotingGround& ground) {
  if (config.freeze_after == 0 || topology.size == 1) return nullptr;
  const std::set<std::string> hosts(topology.hosts.begin(), topology.hosts.end());
  const char* refusal = nullptr;
  if (!ground.shares_everywhere) {
    refusal = "the ranks of a host share no memory";
  } else if (static_cast<int64_t>(hosts.size()) - 1 > config.coordinator_radix) {
    // Each votes to each other one: more messages than negotiation takes.
    refusal = "there are more hosts than MYDIST_COORDINATOR_RADIX allows a rank to talk to";
  }
  if (refusal != nullptr) {
    if (topology.rank == 0) {
      MYDIST_LOG(kInfo) << "the schedule is negotiated in spite of MYDIST_FREEZE_AFTER: "
                        << refusal;
    }
    return nullptr;
  }
  if (ground.shm == nullptr) return std::make_unique<LoneVoteBoard>();
  return std::make_unique<ShmVoteBoard>(ground.shm, ground.control);
}

}  // namespace mydist
