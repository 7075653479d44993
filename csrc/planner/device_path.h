// Device path: what serves tensors on GPUs of a process set: NCCL where all its ranks can have it,
// else host memory on the way. ChooseNccl decides, DeviceChoice makes the implementations, and a
// DeviceTeam has those of one set.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "algorithms/collectives.h"
#include "algorithms/device/device_plugin.h"
#include "base/status.h"
#include "config/config.h"
#include "planner/collectives_choice.h"
#include "planner/device_links.h"
#include "planner/fact_board.h"
#include "transport/transport.h"
#include "world/process_set.h"
#include "world/topology.h"

namespace mydist {

// ChooseNccl: whether the ranks of a process set reduce over NCCL. Pure: a function of what every
// rank says of itself, in the same order everywhere, so that all choose alike.

// Travels as it lies in memory: init() has made sure that all ranks run the same build. Texts end
// with a zero.
struct DeviceRecord {
  int32_t nccl_version = 0;   // 0: this rank has none.
  int32_t may_share_gpu = 0;  // NCCL has been told to allow that.
  std::array<char, 64> gpu{};
  std::array<char, 128> host{};     // What NCCL takes for one.
  std::array<char, 312> why_not{};  // Why it has none.
};
static_assert(sizeof(DeviceRecord) == 512);

struct DeviceTraits {
  int nccl_version = 0;
  bool is_asked_to_share = false;  // Which NCCL can from 2.30.3 on.
  std::string gpu;                 // Device::identity.
  std::string host;
  std::string why_not;
};
// Longer texts are cut.
DeviceRecord MakeDeviceRecord(const DeviceTraits& traits);

struct NcclChoice {
  int version = 0;  // 0: not over NCCL.
  std::string why;
};

// `records[i]` is of rank `ranks[i]` of the job. At least one.
NcclChoice ChooseNccl(std::span<const DeviceRecord> records, std::span<const int> ranks);

// DeviceChoice: which implementations serve a process set whose tensors are on GPUs, best first:
// NCCL where all ranks can have it, else host memory on the way.
// Owned by the engine, called by the thread that drives it. All ranks of a set come to the same
// choice.

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

// DeviceTeam: what serves one process set on one GPU of this rank: host memory on the way at first,
// NCCL once all ranks of the set have agreed on it, at the first batch that needs them all.
// Owned by the executor, used by the thread that drives the engine.

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
