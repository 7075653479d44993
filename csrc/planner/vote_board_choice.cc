#include "planner/vote_board_choice.h"

#include <set>
#include <string>

#include "base/log.h"
#include "transport/lone_vote_board.h"
#include "transport/shm_vote_board.h"

namespace mydist {

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
