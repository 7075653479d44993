// BatchEngine: what the engine has on one rank to execute batches with, and the phases it was told.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "algorithms/batch.h"
#include "algorithms/rank_ordered_collectives.h"
#include "transport/factory.h"

namespace mydist::testing {

// Elements of the tensors of a batch: none, one, few, and many.
inline const std::vector<int64_t> kCounts = {3, 0, 1000, 1, 40001, 17};

struct BatchEngine {
  explicit BatchEngine(Connection& connection)
      : collectives(connection.transport.get()),
        context{.rank = connection.rank,
                .size = connection.size,
                .collectives = &collectives,
                .numbers = &collectives,
                .memory = &memory,
                .activity = [this](const char* activity) { activities.emplace_back(activity); }} {}

  RankOrderedCollectives collectives;
  HostMemory memory;
  std::vector<std::string> activities;
  BatchContext context;
};

// Tests with so many ranks.
class BatchRanks : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};
inline const auto kBatchRanks = ::testing::Values(1, 2, 3, 8);

}  // namespace mydist::testing
