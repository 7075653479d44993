// LaneRoster: the lanes of this process, so that what one of them learns of a rank reaches all that
// have it. Any thread.
#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"

namespace mydist {

class GroupLane;

class LaneRoster {
 public:
  static LaneRoster& OfProcess();

  void Add(const std::shared_ptr<GroupLane>& lane) MYDIST_EXCLUDES(mutex_);
  // Those in which this process is `self` and that have `rank` as well, both ranks of the program.
  std::vector<std::shared_ptr<GroupLane>> LanesWith(int self, int rank) MYDIST_EXCLUDES(mutex_);
  // The ranks of the program that `self` watches in one of them.
  std::vector<int> WatchedBy(int self) MYDIST_EXCLUDES(mutex_);

 private:
  std::vector<std::shared_ptr<GroupLane>> Lanes() MYDIST_EXCLUDES(mutex_);

  Mutex mutex_;
  std::vector<std::weak_ptr<GroupLane>> lanes_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist
