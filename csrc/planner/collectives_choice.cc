#include "planner/collectives_choice.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "algorithms/registry.h"
#include "base/log.h"
#include "transport/shm_vote_board.h"

namespace mydist {

Result<Collectives*> ChooseFor(const BatchTraits& traits,
                               const std::vector<std::unique_ptr<Collectives>>& choices) {
  for (const auto& collectives : choices) {
    if (collectives->Supports(traits)) return collectives.get();
  }
  return Status::Internal("no algorithm of this job can run " + std::string(OpKindName(traits.op)) +
                          " of " + std::string(DataTypeName(traits.dtype)) + " on device " +
                          std::to_string(traits.device));
}

std::vector<std::unique_ptr<Collectives>> CollectivesChoice::Make(
    Transport* transport, const std::vector<int>& ranks) const {
  const AlgorithmSite site{.config = *config_,
                           .topology = *topology_,
                           .ranks = ranks,
                           .transport = transport,
                           .shm = shm_};
  std::vector<AlgorithmRow> rows = Algorithms();
  const auto is_named = [&](const AlgorithmRow& row) { return row.name == config_->algorithm; };
  std::stable_partition(rows.begin(), rows.end(), is_named);
  std::vector<std::unique_ptr<Collectives>> choices;
  for (const AlgorithmRow& row : rows) {
    if (!row.keeps_rank_order && !is_named(row)) continue;
    if (auto collectives = row.make(site)) choices.push_back(std::move(collectives));
  }
  return choices;
}

std::unique_ptr<VoteBoard> ChooseVoteBoard(const Config& config, const Topology& topology,
                                           const VotingGround& ground) {
  if (config.freeze_after == 0 || topology.size == 1) return nullptr;
  const std::set<std::string> hosts(topology.hosts.begin(), topology.hosts.end());
  const char* refusal = nullptr;
  if (!ground.shares_everywhere) {
    refusal = "the ranks of a host do not share memory";
  } else if (static_cast<int64_t>(hosts.size()) - 1 > config.coordinator_radix) {
    // Each votes to each other one: more messages than negotiation takes.
    refusal = "the job has more hosts than MYDIST_COORDINATOR_RADIX allows";
  }
  if (refusal != nullptr) {
    if (topology.rank == 0) {
      MYDIST_LOG(kInfo) << "the schedule is never frozen, and MYDIST_FREEZE_AFTER has no effect: "
                        << refusal;
    }
    return nullptr;
  }
  if (ground.shm == nullptr) return std::make_unique<LoneVoteBoard>();
  return std::make_unique<ShmVoteBoard>(ground.shm, ground.control);
}

}  // namespace mydist
