// ProcessSetRegistry: which process sets this job has, and with which GPU this rank takes part in
// each. Owned by the engine, whose thread adds and removes sets as the stream says; any thread may
// ask.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "controller/messages/request.h"
#include "world/process_set.h"
#include "world/topology.h"

namespace mydist {

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

}  // namespace mydist
