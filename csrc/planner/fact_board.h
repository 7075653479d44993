// FactBoard: facts that the engine finds out while it runs, for mydist.explain(). Owned by the
// engine; written by the thread that drives it, read by any thread.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "world/process_set.h"

namespace mydist {

// Fact: something that was chosen when the job started, and why; a row of mydist.explain(). Pure
// data.

struct Fact {
  std::string topic;   // One or two words, e.g. "data path".
  std::string choice;  // What was chosen or measured, with units.
  std::string reason;  // Why; may be empty.
};

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

}  // namespace mydist
