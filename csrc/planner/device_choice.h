// DeviceChoice: which implementations serve a process set whose tensors are on GPUs, best first:
// NCCL where all ranks can have it, else host memory on the way.
// Owned by the engine, called by whoever drives it. All ranks of a set come to the same choice.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "algorithms/collectives.h"
#include "algorithms/device/device_plugin.h"
#include "config/config.h"
#include "planner/collectives_choice.h"
#include "planner/device_agreement.h"
#include "planner/device_links.h"
#include "transport/transport.h"
#include "world/host_groups.h"
#include "world/process_set.h"
#include "world/topology.h"

namespace mydist {

// The ranks of a process set, as this one of them sees them. What is pointed to outlives whatever
// is made with it.
struct DeviceMembers {
  const DeviceSeat* seat = nullptr;
  const ProcessSet* set = nullptr;
  int index = 0;                   // Of this rank in the set.
  Transport* transport = nullptr;  // Of the set; null: one rank.
  Collectives* on_host = nullptr;  // Of the set, for host memory.
};

// In the order in which one needs the other.
struct DeviceParts {
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::unique_ptr<Collectives>> exchanges;
  std::vector<std::shared_ptr<DeviceLink>> links;
  std::vector<std::unique_ptr<Collectives>> choices;  // Best first.
};

class DeviceChoice {
 public:
  struct Sources {
    const Config* config = nullptr;
    const Topology* topology = nullptr;
    const CollectivesChoice* on_host = nullptr;
    DevicePlugin* plugin = nullptr;  // Null: there are no GPUs.
    std::vector<std::string> nccl_folders{};
  };
  // All that is pointed to outlives this object and what it makes.
  explicit DeviceChoice(Sources sources);

  DevicePlugin* plugin() const { return sources_.plugin; }

  // Compares notes with all ranks of the set; blocks until they have called it. Errors of on_host.
  Result<NcclChoice> Agree(const DeviceMembers& members) const;

  // Through host memory, which needs no agreement; where they lie for one rank alone.
  DeviceParts MakeStaged(const DeviceMembers& members) const;
  // Over NCCL, and behind that through host memory. Errors of DevicePlugin::Connect.
  Result<DeviceParts> MakeOverNccl(const DeviceMembers& members) const;

  // What serves a set then, for people.
  std::string Describe(const ProcessSet& set, const NcclChoice& agreed) const;

 private:
  Result<int> NcclVersion() const;
  DeviceRecord OwnRecord(const DeviceMembers& members) const;
  // The hosts of these ranks, where NCCL is not to leave them; the same on all ranks.
  std::optional<HostGroups> TwoLevels(const std::vector<int>& ranks) const;
  NcclChoice NcclFor(std::span<const DeviceRecord> records, const std::vector<int>& ranks) const;
  Result<std::unique_ptr<Collectives>> Link(const DevicePeers& peers, DeviceParts& parts) const;
  Result<std::unique_ptr<Collectives>> HostsFirst(const DeviceMembers& members, HostGroups groups,
                                                  DeviceParts& parts) const;
  Result<std::unique_ptr<Collectives>> WithinHost(const DeviceMembers& members,
                                                  const HostGroups& groups,
                                                  DeviceParts& parts) const;

  const Sources sources_;
  const NcclPlaces places_;
};

}  // namespace mydist
