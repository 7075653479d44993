// Device path: what serves tensors on GPUs of a process set: NCCL where all its ranks can have it,
// else host memory on the way. ChooseNccl decides, DeviceChoice makes the implementations, and a
// DeviceTeam has those of one set.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/collectives.h"
#include "algorithms/device/device_plugin.h"
#include "algorithms/device/staging_pipeline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "config/config.h"
#include "memory/device/device.h"
#include "memory/device/device_memory.h"
#include "planner/collectives_choice.h"
#include "transport/transport.h"
#include "world/process_set.h"
#include "world/topology.h"

namespace mydist {

// Fact: something that was chosen when the job started, and why; a row of mydist.explain(). Pure
// data.
struct Fact {
  std::string topic;   // One or two words, e.g. "data path".
  std::string choice;  // What was chosen or measured, with units.
  std::string reason;  // Why; may be empty.
};

// FactBoard: facts that the engine finds out while it runs, for mydist.explain(). Owned by the
// engine; written by the thread that drives it, read by any thread.
class FactBoard {
 public:
  void Put(ProcessSetId set, Fact fact) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    facts_.insert_or_assign(set, std::move(fact));
  }

  void Remove(ProcessSetId set) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    facts_.erase(set);
  }

  // Process set by process set.
  std::vector<Fact> All() const MYDIST_EXCLUDES(mutex_) {
    std::vector<Fact> facts;
    MutexLock lock(mutex_);
    for (const auto& [set, fact] : facts_) facts.push_back(fact);
    return facts;
  }

 private:
  mutable Mutex mutex_;
  std::map<ProcessSetId, Fact> facts_ MYDIST_GUARDED_BY(mutex_);
};

// DeviceLinks: all that links this rank's devices to others, of all process sets, so that it can be
// watched and ended as one.
// Owned by the executor, whose teams add and remove their links. Any thread; the links are called
// without the lock.
class DeviceLinks {
 public:
  // After an Abort the link is aborted at once.
  void Add(std::shared_ptr<DeviceLink> link) MYDIST_EXCLUDES(mutex_);
  void Remove(const DeviceLink* link) MYDIST_EXCLUDES(mutex_);
  bool empty() const MYDIST_EXCLUDES(mutex_);

  // What failed first, of any; never waits.
  Status Check() const MYDIST_EXCLUDES(mutex_);
  // All there are and all that come; see DeviceLink. Only the first `why` counts.
  void Abort(const Status& why) MYDIST_EXCLUDES(mutex_);
  // By the thread that drives the engine, on all ranks, whose links are in the same order. Once one
  // cannot be closed by `deadline`, all are aborted.
  void Close(TimePoint deadline) MYDIST_EXCLUDES(mutex_);

 private:
  using List = std::vector<std::shared_ptr<DeviceLink>>;
  List Snapshot() const MYDIST_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  List links_ MYDIST_GUARDED_BY(mutex_);
  Status aborted_ MYDIST_GUARDED_BY(mutex_);
};

// What batches on one GPU are executed with: all of them on one stream.
struct DeviceSeat {
  std::shared_ptr<Device> device;
  StreamSeat on_stream;
  DeviceMemory fusion_memory;
  std::shared_ptr<StagingPipeline> staging;  // Through the host, for whatever needs it.
  PassingMemory passing{};
  EventPointer last_batch{};  // Its end; null: it is known to be over.
};

// DeviceSeats: the GPUs this engine works on, each opened when the first tensor on it comes.
// Owned by the executor, used by the thread that drives the engine.
class DeviceSeats {
 public:
  // `plugin`, where GPUs come from, may be null: there are none. `watch`: see StreamSeat.
  DeviceSeats(DevicePlugin* plugin, WaitWatch watch) : plugin_(plugin), watch_(std::move(watch)) {}
  // Waits for what is on the streams: their memory goes now.
  ~DeviceSeats();
  DeviceSeats(const DeviceSeats&) = delete;
  DeviceSeats& operator=(const DeviceSeats&) = delete;

  // Valid as long as this object.
  Result<DeviceSeat*> At(int index);
  // The GPU of a rank that has had no tensor to say so: one that it uses already, else the one that
  // goes with its number on the host.
  Result<int> Home(int local_rank) const;

  // Whether the work of all batches is known to be over. Never waits. Errors: those of Device.
  Result<bool> AreIdle();

  // See StagingPipeline::most_in_flight; of the GPU that has had most.
  int64_t MostStagedChunks() const;

 private:
  DevicePlugin* const plugin_;
  const WaitWatch watch_;
  std::map<int, DeviceSeat> seats_;
};

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

// DeviceChoice: which implementations serve a process set whose tensors are on GPUs, best first:
// NCCL where all ranks can have it, else host memory on the way.
// Owned by the engine, called by the thread that drives it. All ranks of a set come to the same
// choice.
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
