// DeviceTeam: what serves one process set on one GPU of this rank: host memory on the way at first,
// NCCL once all ranks of the set have agreed on it, at the first batch that needs them all.
// Owned by the executor, used by whoever drives the engine.
#pragma once

#include "algorithms/collectives.h"
#include "base/status.h"
#include "planner/device_choice.h"
#include "planner/device_links.h"
#include "planner/fact_board.h"

namespace mydist {

class DeviceTeam {
 public:
  // All outlive the team, and `members` what it points to.
  struct Surroundings {
    const DeviceChoice* choice = nullptr;
    DeviceLinks* links = nullptr;
    FactBoard* facts = nullptr;
  };
  DeviceTeam(const Surroundings& surroundings, DeviceSeat* seat, const DeviceMembers& members);
  // Waits for what is on the stream, of which nothing waits for another rank any more: the team, or
  // all links, have been closed or aborted.
  ~DeviceTeam();
  DeviceTeam(const DeviceTeam&) = delete;
  DeviceTeam& operator=(const DeviceTeam&) = delete;

  // What runs such a batch, for which all its ranks call this; the first time it blocks until all
  // have. Errors of DeviceChoice; kInternal when nothing does.
  Result<Collectives*> For(const BatchTraits& traits);

  // The last call, on all ranks of the set at the same point. Blocks until their GPUs are through
  // with what they do together. What the seat's watch says; errors of DeviceLink.
  Status Close();

 private:
  Status Agree();
  void Announce(const NcclChoice& agreed) const;

  const Surroundings surroundings_;
  DeviceSeat* const seat_;
  const DeviceMembers members_;
  bool has_agreed_ = false;
  DeviceParts parts_;
};

}  // namespace mydist
