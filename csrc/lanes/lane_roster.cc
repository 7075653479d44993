#include "lanes/lane_roster.h"

#include <algorithm>
#include <utility>

#include "lanes/group_lane.h"

namespace mydist {

LaneRoster& LaneRoster::OfProcess() {
  static auto* const kRoster = new LaneRoster;  // Never freed: lanes may end after static objects.
  return *kRoster;
}

void LaneRoster::Add(const std::shared_ptr<GroupLane>& lane) {
  MutexLock lock(mutex_);
  std::erase_if(lanes_, [](const auto& known) { return known.expired(); });
  lanes_.push_back(lane);
}

std::vector<std::shared_ptr<GroupLane>> LaneRoster::Lanes() {
  std::vector<std::shared_ptr<GroupLane>> lanes;
  MutexLock lock(mutex_);
  for (const auto& known : lanes_) {
    // A forked child has lanes of its own.
    if (auto lane = known.lock(); lane != nullptr && lane->CheckProcess().ok()) {
      lanes.push_back(std::move(lane));
    }
  }
  return lanes;
}

std::vector<std::shared_ptr<GroupLane>> LaneRoster::LanesWith(int self, int rank) {
  std::vector<std::shared_ptr<GroupLane>> lanes = Lanes();
  std::erase_if(lanes, [&](const std::shared_ptr<GroupLane>& lane) {
    return lane->world_rank() != self || !lane->Has(rank);
  });
  return lanes;
}

std::vector<int> LaneRoster::WatchedBy(int self) {
  std::vector<int> watched;
  for (const auto& lane : Lanes()) {
    if (lane->world_rank() != self) continue;
    const std::vector<int> more = lane->Watched();
    watched.insert(watched.end(), more.begin(), more.end());
  }
  return watched;
}

}  // namespace mydist
