// Executor: the reduce step. Turns one fused group of agreed tensors into one call of
// algorithms/batch, on the ranks of their process set. Owned by the engine, called by the
// thread that drives it; blocks until the results are in the outputs, or, on a GPU, until they are
// ordered: every tensor's DeviceOrder::done is set then.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/batch.h"
#include "algorithms/collectives.h"
#include "base/mutex.h"
#include "base/status.h"
#include "controller/messages/request.h"
#include "controller/messages/response.h"
#include "engine/tensor_queue.h"
#include "memory/fusion_buffer.h"
#include "planner/collectives_choice.h"
#include "planner/device_path.h"
#include "transport/transport.h"
#include "world/process_set.h"
#include "world/topology.h"

namespace mydist {

// ProcessSetRegistry: which process sets this job has, and with which GPU this rank takes part in
// each. Owned by the engine, whose thread adds and removes sets as the stream says; any thread may
// ask.
class ProcessSetRegistry {
 public:
  // Starts with the global set.
  explicit ProcessSetRegistry(const Topology& topology) : rank_(topology.rank) {
    Add(GlobalProcessSet(topology.size));
  }

  void Add(ProcessSet set) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const ProcessSetId id = set.id;
    sets_.insert_or_assign(id, Entry{std::move(set)});
  }

  void Remove(ProcessSetId id) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    sets_.erase(id);
  }

  // kInvalidArgument when there is none.
  Result<ProcessSet> Find(ProcessSetId id) const MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto it = sets_.find(id);
    if (it != sets_.end()) return it->second.set;
    return Status::InvalidArgument("process set " + std::to_string(id) +
                                   " is unknown or has been removed. Add it with "
                                   "add_process_set() first.");
  }

  // kInvalidArgument when the set is unknown, this rank is no member, or the tensor is on another
  // GPU than those before. `gpu`: of the tensors of this call so far; kCpuDevice: none.
  Status Admit(const Request& request, int32_t* gpu) const MYDIST_EXCLUDES(mutex_) {
    {
      // Asked for every tensor, so without a copy.
      MutexLock lock(mutex_);
      const auto it = sets_.find(request.process_set);
      if (it != sets_.end() && it->second.set.IndexOf(rank_)) {
        if (request.device == kCpuDevice) return Status::Ok();
        if (*gpu == kCpuDevice) *gpu = it->second.gpu;
        if (*gpu == kCpuDevice) *gpu = request.device;
        return *gpu == request.device ? Status::Ok() : OnAnotherGpu(request, *gpu);
      }
    }
    MYDIST_ASSIGN_OR_RETURN(const ProcessSet set, Find(request.process_set));
    return Status::InvalidArgument("rank " + std::to_string(rank_) + " is not a member of " +
                                   set.ToString() +
                                   ". Call it only on ranks where process_set.included() is true.");
  }

  // The first GPU stays that of the set. kInvalidArgument when another thread was faster with
  // another one.
  Status Bind(const Request& request) MYDIST_EXCLUDES(mutex_) {
    const int32_t gpu = GpuOf(request.process_set, request.device);
    return gpu == request.device ? Status::Ok() : OnAnotherGpu(request, gpu);
  }

  // The GPU with which this rank takes part in the set: `gpu`, if there is none yet.
  int32_t GpuOf(ProcessSetId id, int32_t gpu) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto it = sets_.find(id);
    if (it == sets_.end()) return gpu;
    if (it->second.gpu == kCpuDevice) it->second.gpu = gpu;
    return it->second.gpu;
  }

 private:
  struct Entry {
    ProcessSet set;
    int32_t gpu = kCpuDevice;  // kCpuDevice: none yet.
  };

  static Status OnAnotherGpu(const Request& request, int32_t gpu) {
    return Status::InvalidArgument(
        CallText(request) + ": the tensor is on GPU " + std::to_string(request.device) +
        ", but this process takes part in process set " + std::to_string(request.process_set) +
        " with GPU " + std::to_string(gpu) +
        ". A process uses one GPU in a process set. Start one process for each GPU.");
  }

  const int rank_;
  mutable Mutex mutex_;
  std::map<ProcessSetId, Entry> sets_ MYDIST_GUARDED_BY(mutex_);
};

// A tensor the group needs: what all ranks agreed on, and our own memory for it.
struct AgreedTensor {
  const Agreement* agreement = nullptr;
  PendingTensor* pending = nullptr;

  // As this rank has it: the agreement only says that it is a GPU.
  int32_t device() const { return pending->submission.request.device; }
};

// What an executor makes its parts with.
struct ExecutorSources {
  // Where batches in host memory are packed, if it has room; may be null.
  MemorySource fusion_memory;
  // Not null; they outlive the executor.
  const CollectivesChoice* on_host = nullptr;
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
  // Any thread: what is under way on GPUs fails, so that the threads that wait for it go on.
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
  TimePoint next_check_ = kNever;                 // Of work without a waiting caller.
  TimePoint next_peer_check_ = TimePoint::min();  // While the host waits.
  std::map<ProcessSetId, Team> teams_;
  FusionBuffer host_memory_;
  int64_t pack_bytes_ = 0;
};

}  // namespace mydist
