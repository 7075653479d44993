// What this rank votes with while the schedule is frozen. Called once, when the engine is made.
#pragma once

#include <memory>

#include "config/config.h"
#include "transport/control_plane.h"
#include "transport/shm_port.h"
#include "transport/vote_board.h"
#include "world/topology.h"

namespace mydist {

struct VotingGround {
  shm::ShmPort* shm = nullptr;      // Null: this rank shares no memory. Outlives the board.
  bool shares_everywhere = false;   // As in EngineOptions.
  ControlPlane* control = nullptr;  // Outlives the board. Null for a single rank.
};

// Null when the job is never to freeze; all ranks come to the same.
std::unique_ptr<VoteBoard> ChooseVoteBoard(const Config& config, const Topology& topology,
                                           const VotingGround& ground);

}  // namespace mydist
