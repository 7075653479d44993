// Executor: the reduce step. Turns one fused group of agreed tensors into one call of
// algorithms/batch, on the ranks of their process set. Owned by the engine, called by the
// thread that drives it; blocks until the results are in the outputs, or, on a GPU, until they are
// ordered: every tensor's DeviceOrder::done is set then.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "algorithms/batch.h"
#include "algorithms/collectives.h"
#include "controller/messages/response.h"
#include "engine/process_set_registry.h"
#include "engine/tensor_queue.h"
#include "memory/fusion_buffer.h"
#include "planner/collectives_choice.h"
#include "planner/device_path.h"
#include "transport/transport.h"
#include "world/process_set.h"
#include "world/topology.h"

namespace mydist {

// A tensor the group needs: what all ranks agreed on, and our own memory for it.
struct AgreedTensor {
  const Agreement* agreement = nullptr;
  PendingTensor* pending = nullptr;

  // As this rank has it: the agreement only says that it is a GPU.
  int32_t device() const { return pending->submission.request.device; }
};

// The implementations for the ranks a transport spans, given with their numbers in the job, in
// order of preference. Null: one rank only.
using CollectivesFactory = std::function<std::vector<std::unique_ptr<Collectives>>(
    Transport*, const std::vector<int>& ranks)>;

// What an executor makes its parts with.
struct ExecutorSources {
  CollectivesFactory collectives;
  // Where batches in host memory are packed, if it has room; may be null.
  MemorySource fusion_memory;
  // Not null; they outlive the executor.
  const DeviceChoice* on_devices = nullptr;
  ProcessSetRegistry* sets = nullptr;
  // Asked while the host, or a GPU, waits for other ranks: what has happened to the job, and
  // whether a rank is still there. Neither waits.
  WaitWatch news;
  std::function<Status(int rank)> check_peer;
};

class Executor {
 public:
  // `transport`: of the whole job; outlives this object; null for a job of one rank.
  Executor(const Topology& topology, Transport* transport, ExecutorSources sources);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // From now on groups of this set can be executed, if this rank is a member.
  void AddProcessSet(const ProcessSet& set);
  // Blocks, where its ranks have used NCCL, until all of them have come here and their GPUs are
  // through. What fails is for CheckDevices.
  void RemoveProcessSet(ProcessSetId id);

  // Not empty; all of one set, kind, dtype, reduction and root, as the fusion planner grouped them.
  // kInternal when no implementation supports the group or memory for an output cannot be had; else
  // the errors of Collectives. Any error leaves the ranks out of step: the engine must stop.
  Status Execute(std::span<const AgreedTensor> group, const ActivitySink& activity);

  // What has failed on GPUs behind the back of Execute. Never waits, and does nothing before
  // NextCheck, which is kNever when nothing is under way there that could fail.
  Status CheckDevices(TimePoint now);
  TimePoint NextCheck() const { return next_check_; }
  // Nothing is executed any more. When `why` is OK all ranks end, in order and by `deadline`; else
  // what is under way on GPUs is aborted.
  void EndDevices(const Status& why, TimePoint deadline);
  // Any thread: what is under way on GPUs fails, so that whoever waits for it goes on.
  void AbortDevices(const Status& why) { links_.Abort(why); }
  // How tensors on GPUs are reduced, for each process set that has had one. Any thread.
  std::vector<Fact> DeviceFacts() const { return facts_.All(); }

  // What reduces float32 of that size over all ranks of the job; null: nothing does.
  Collectives* ReducerOf(int64_t bytes) const;

  // Bytes that allreduces have copied into the fusion buffer so far.
  int64_t pack_bytes() const { return pack_bytes_; }
  // See EngineStats.
  int64_t most_staged_chunks() const { return devices_.MostStagedChunks(); }

 private:
  // What serves one process set; the first of `collectives` that supports a group runs it.
  struct Team {
    ProcessSet set;
    int index = 0;                         // Of this rank in the set.
    std::unique_ptr<Transport> transport;  // Null for the global set, which uses the job's.
    std::vector<std::unique_ptr<Collectives>> collectives;
    std::unique_ptr<DeviceTeam> on_device;  // Made at the first need.
  };
  using Group = std::span<const AgreedTensor>;

  Transport* TransportOf(const Team& team) const {
    return team.transport == nullptr ? transport_ : team.transport.get();
  }
  static BatchTraits TraitsOf(Group group);
  Status ExecuteOnHost(const Team& team, Group group, const ActivitySink& activity);
  Status ExecuteOnDevices(Team& team, Group group, const ActivitySink& activity);
  Status PlaceNeutral(const Team& team, Submission& submission);
  Status ExecuteOnDevice(Team& team, Group group, const ActivitySink& activity);
  DeviceTeam& OnDevice(Team& team, DeviceSeat* seat);
  Status News();
  Status CheckPeers();
  Status WaitForInputs(const DeviceSeat& seat, Group group) const;
  Status MarkEnd(DeviceSeat& seat, Group group);
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
  const int local_rank_;
  Transport* const transport_;
  const ExecutorSources sources_;
  const DeviceSeat* seat_ = nullptr;  // Of the batch in progress; null in host memory.
  // They outlive what teams have of them.
  DeviceLinks links_;
  FactBoard facts_;
  DeviceSeats devices_;
  Status removal_;                                // Of a process set.
  TimePoint next_check_ = kNever;                 // Of work that nobody waits for.
  TimePoint next_peer_check_ = TimePoint::min();  // While the host waits.
  std::map<ProcessSetId, Team> teams_;
  HostMemory host_memory_;
  int64_t pack_bytes_ = 0;
};

}  // namespace mydist
