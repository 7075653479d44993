// CollectivesChoice: which algorithms serve a process set on this job, best first: the one that
// MYDIST_ALGORITHM names, then the others of the registry that keep the order of ranks. Owned by
// the engine, called by the thread that drives it when a set begins. Decides by layout and settings
// that are the same on all ranks of the set, or in a way that the others do not notice.
#pragma once

#include <memory>
#include <vector>

#include "algorithms/collectives.h"
#include "base/status.h"
#include "config/config.h"
#include "transport/control_plane.h"
#include "transport/shm_transport.h"
#include "transport/transport.h"
#include "transport/vote_board.h"
#include "world/topology.h"

namespace mydist {

// The first that supports it. kInternal when none does.
Result<Collectives*> ChooseFor(const BatchTraits& traits,
                               const std::vector<std::unique_ptr<Collectives>>& choices);

class CollectivesChoice {
 public:
  // All outlive this object and what it makes; `shm` may be null.
  CollectivesChoice(const Config* config, const Topology* topology, shm::ShmPort* shm)
      : config_(config), topology_(topology), shm_(shm) {}

  // See CollectivesFactory (engine/executor.h).
  std::vector<std::unique_ptr<Collectives>> Make(Transport* transport,
                                                 const std::vector<int>& ranks) const;

 private:
  const Config* const config_;
  const Topology* const topology_;
  shm::ShmPort* const shm_;
};

// The board that this rank votes with while the schedule is frozen. Called once, when the engine is
// made.

struct VotingGround {
  shm::ShmPort* shm = nullptr;      // Null: this rank shares no memory. Outlives the board.
  bool shares_everywhere = false;   // As in EngineOptions.
  ControlPlane* control = nullptr;  // Outlives the board. Null for a single rank.
};

// Null when the job is never to freeze; all ranks come to the same.
std::unique_ptr<VoteBoard> ChooseVoteBoard(const Config& config, const Topology& topology,
                                           const VotingGround& ground);

}  // namespace mydist
