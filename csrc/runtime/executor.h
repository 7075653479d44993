// Executor: the reduce step. Turns one fused group of agreed tensors into one call of ops/batch, on
// the ranks of their process set.
// Owned by the engine, called by whoever drives it; blocks until the results are in the outputs,
// or, on a GPU, until they are ordered: every tensor's DeviceOrder::done is set then.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "controller/response.h"
#include "ops/batch.h"
#include "ops/batch_memory.h"
#include "ops/collectives.h"
#include "ops/transport.h"
#include "runtime/device_seats.h"
#include "runtime/pending_table.h"
#include "world/process_set.h"
#include "world/topology.h"

namespace mydist {

// A tensor the group needs: what all ranks agreed on, and our own memory for it.
struct AgreedTensor {
  const Agreement* agreement = nullptr;
  PendingTensor* pending = nullptr;
};

// The implementations for the ranks a transport spans, given with their numbers in the job, in
// order of preference. Null: one rank only.
using CollectivesFactory = std::function<std::vector<std::unique_ptr<Collectives>>(
    Transport*, const std::vector<int>& ranks)>;

// The same for tensors on a GPU: they put their work on the stream of the seat.
using DeviceCollectivesFactory = std::function<std::vector<std::unique_ptr<Collectives>>(
    const DeviceSeat&, Transport*, const std::vector<int>& ranks)>;

// What an executor makes its parts with.
struct ExecutorSources {
  CollectivesFactory collectives;
  DeviceCollectivesFactory device_collectives;
  // Where batches in host memory are packed, if it has room; may be null.
  MemorySource fusion_memory;
  DeviceSource devices;  // May be null.
};

class Executor {
 public:
  // `transport`: of the whole job; outlives this object; null for a job of one rank.
  Executor(const Topology& topology, Transport* transport, ExecutorSources sources);

  // From now on groups of this set can be executed, if this rank is a member.
  void AddProcessSet(const ProcessSet& set);
  void RemoveProcessSet(ProcessSetId id) { teams_.erase(id); }

  // Not empty; all of one set, kind, dtype, reduction and root, as the fusion planner grouped them.
  // kInternal when no implementation supports the group or memory for an output cannot be had; else
  // the errors of Collectives. Any error leaves the ranks out of step: the engine must stop.
  Status Execute(std::span<const AgreedTensor> group, const ActivitySink& activity);

  // What reduces float32 of that size over all ranks of the job; null: nothing does.
  Collectives* ReducerOf(int64_t bytes) const;

  // Bytes that allreduces have copied into the fusion buffer so far.
  int64_t pack_bytes() const { return pack_bytes_; }

 private:
  // What serves one process set; the first of `collectives` that supports a group runs it.
  struct Team {
    ProcessSet set;
    int index = 0;                         // Of this rank in the set.
    std::unique_ptr<Transport> transport;  // Null for the global set, which uses the job's.
    std::vector<std::unique_ptr<Collectives>> collectives;
    std::map<int, std::vector<std::unique_ptr<Collectives>>> on_device;  // Made at the first need.
  };
  using Group = std::span<const AgreedTensor>;

  Transport* TransportOf(const Team& team) const {
    return team.transport == nullptr ? transport_ : team.transport.get();
  }
  Status ExecuteOnHost(const Team& team, Group group, const ActivitySink& activity);
  Status ExecuteOnDevice(Team& team, Group group, const ActivitySink& activity);
  Result<void*> Allocate(const Submission& submission, const Shape& shape);
  Status Run(const Team& team, Group group, const BatchContext& context);
  Status Allreduce(Group group, const BatchContext& context);
  Status Allgather(Group group, const BatchContext& context);
  Status Broadcast(const Team& team, Group group, const BatchContext& context);
  Status Alltoall(const AgreedTensor& tensor, const BatchContext& context);
  Status Reducescatter(Group group, const BatchContext& context);
  Status Reduce(const Team& team, const AgreedTensor& tensor, const BatchContext& context);
  Status Gather(const Team& team, const AgreedTensor& tensor, const BatchContext& context);
  Status Scatter(const Team& team, const AgreedTensor& tensor, const BatchContext& context);
  Status SendReceive(const Team& team, const AgreedTensor& tensor, const BatchContext& context);

  const int rank_;
  Transport* const transport_;
  const ExecutorSources sources_;
  const DeviceSeat* seat_ = nullptr;  // Of the batch in progress; null in host memory.
  DeviceSeats devices_;               // Outlives what teams have on them.
  std::map<ProcessSetId, Team> teams_;
  HostMemory host_memory_;
  int64_t pack_bytes_ = 0;
};

}  // namespace mydist
