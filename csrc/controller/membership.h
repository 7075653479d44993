// Membership: which ranks have left, and what else concerns the whole job rather than a process
// set: starting and stopping the timeline. Pure. Owned by the Coordinator of one vertex.
// A departure goes up at once; the root tells everybody, and that it is over when all have left.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "controller/report.h"
#include "controller/stream.h"

namespace mydist {

class Membership {
 public:
  explicit Membership(int32_t size) : departed_(static_cast<size_t>(size)) {}

  // A rank of this subtree leaves; a second time changes nothing. kInternal for an unknown rank.
  Status Depart(Departure departure);
  void Control(TimelineControl control) { controls_.push_back(control); }
  // What a child reports.
  Status TakeReport(const Report& report);

  bool HasNews() const { return !departures_.empty() || !controls_.empty(); }
  // Not the root: moves the news into the report.
  void FillReport(Report& report);
  // Root: the items that follow from the news.
  std::vector<StreamItem> Decide();

 private:
  std::vector<bool> departed_;  // By rank.
  size_t departed_count_ = 0;
  std::vector<Departure> departures_;      // Not yet told.
  std::vector<TimelineControl> controls_;  // Not yet told.
};

}  // namespace mydist
