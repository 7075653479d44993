// ProcessSetRegistry: which process sets this job has, for whoever calls.
// Owned by the engine, whose thread adds and removes sets as the stream says; any thread may ask.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
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
    sets_.insert_or_assign(set.id, std::move(set));
  }

  void Remove(ProcessSetId id) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    sets_.erase(id);
  }

  // kInvalidArgument when there is none.
  Result<ProcessSet> Find(ProcessSetId id) const MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto it = sets_.find(id);
    if (it != sets_.end()) return it->second;
    return Status::InvalidArgument("process set " + std::to_string(id) +
                                   " is unknown or has been removed. Add it with "
                                   "add_process_set() first.");
  }

  // kInvalidArgument when there is none or this rank is no member.
  Status CheckMember(ProcessSetId id) const MYDIST_EXCLUDES(mutex_) {
    {
      // Asked for every tensor, so without a copy.
      MutexLock lock(mutex_);
      const auto it = sets_.find(id);
      if (it != sets_.end() && it->second.IndexOf(rank_)) return Status::Ok();
    }
    MYDIST_ASSIGN_OR_RETURN(const ProcessSet set, Find(id));
    return Status::InvalidArgument("rank " + std::to_string(rank_) + " is not a member of " +
                                   set.ToString() + ". Call it only where process_set.included().");
  }

 private:
  const int rank_;
  mutable Mutex mutex_;
  std::map<ProcessSetId, ProcessSet> sets_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist
