// CollectivesChoice: which algorithms serve a process set on this job, best first: the one that
// MYDIST_ALGORITHM names, then the others of the registry that keep the order of ranks. Owned by
// the engine, called by the thread that drives it when a set begins. Decides by layout and settings
// that are the same on all ranks of the set, or in a way that the others do not notice.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "algorithms/collectives.h"
#include "base/status.h"
#include "config/config.h"
#include "planner/bucket_plan.h"
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

  // Those for the ranks that a transport spans, given with their numbers in the job. `transport` is
  // null for one rank only.
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

// PathProbe: measures what a reduction over all ranks costs here, by a few of them on the
// collectives themselves: nothing is negotiated, named, counted or recorded.
// Run once by Engine::Start, on the thread that calls init(), before the engine's own exists.
// Blocking and collective over all ranks of the job; takes some milliseconds.

// How much "large" is.
inline constexpr int64_t kProbeBytes = int64_t{1} << 20;
// Of the latency, what is not measured: waking the engine for a request and the caller for the
// result takes as long as two wake-ups of an idle core.
inline constexpr std::chrono::microseconds kWakeUps{80};

struct ProbedPath {
  Collectives* small = nullptr;  // Reduces a few bytes. Not null.
  Collectives* large = nullptr;  // Reduces megabytes. Not null; may be the same.
  float* memory = nullptr;  // Where kProbeBytes lie as gradients will; null: in private memory.
  Transport* transport = nullptr;  // What negotiation is like. May be null: like `small`.
};

// Equal on all ranks: the slowest rank's. The errors of Collectives.
Result<PathCosts> MeasurePath(const ProbedPath& path);

}  // namespace mydist
