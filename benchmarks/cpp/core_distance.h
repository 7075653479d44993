// CoreDistance: how long a cache line takes from the core of rank 0 to that of rank 1 and back,
// half of it. On a virtual machine that changes while a benchmark runs, and times of small tensors
// with it. Owned by main, one per rank; Measure is collective among the ranks it was made with.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "ranks.h"

namespace mydist::bench {

class CoreDistance {
 public:
  // Null where ranks share cores: it would measure the scheduler.
  static Result<std::unique_ptr<CoreDistance>> Make(Ranks* ranks);
  ~CoreDistance();
  CoreDistance(const CoreDistance&) = delete;
  CoreDistance& operator=(const CoreDistance&) = delete;

  // The shortest of several exchanges; the same figure on all ranks.
  Result<double> MeasureNs();

 private:
  struct Lines;
  CoreDistance(Ranks* ranks, Lines* lines) : ranks_(ranks), lines_(lines) {}

  Ranks* const ranks_;
  Lines* const lines_;
  uint64_t turn_ = 0;
};

}  // namespace mydist::bench
