// Every collective over one transport: the whole suite as every backend has to pass it, over all
// ranks and over process sets. Every rank of the job calls RunEveryCollective.
#pragma once

#include <algorithm>
#include <vector>

#include "algorithms/rank_ordered_collectives.h"
#include "conformance/adasum_suite.h"
#include "conformance/collectives_suite.h"
#include "conformance/rooted_suite.h"
#include "conformance/transport_suite.h"
#include "transport/subset_transport.h"

namespace mydist::testing {

inline constexpr DataType kTypesOfEveryKind[] = {DataType::kInt64, DataType::kBfloat16,
                                                 DataType::kFloat32};

// What an algorithm has to pass. All types and operations: the kernels' own tests.
inline void CheckEveryCollective(const Rank& me) {
  CheckMovingCollectives(me);
  CheckMovingRooted(me);
  for (const DataType dtype : kTypesOfEveryKind) {
    CheckReducingCollectives(me, dtype);
    CheckReducingRooted(me, dtype);
    if (HasMeaning(ReduceOp::kAdasum, dtype)) RunAdasumConformance(me, dtype);
  }
}

inline void RunCollectives(Transport& transport) {
  RankOrderedCollectives collectives(&transport);
  CheckEveryCollective({transport.rank(), transport.size(), &collectives});
}

inline bool Contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// What the members of a set do, on their own numbering; nobody else is involved.
inline void RunOnSubset(Transport& transport, const std::vector<int>& ranks) {
  if (!Contains(ranks, transport.rank())) return;
  SubsetTransport subset(&transport, ranks);
  EXPECT_EQ(subset.size(), static_cast<int>(ranks.size()));
  EXPECT_EQ(ranks[static_cast<size_t>(subset.rank())], transport.rank());
  CheckOrder(subset);
  CheckRandomTraffic(subset, 7);
  RunCollectives(subset);
}

// A little of everything: enough to notice a message that others have left behind.
inline void RunBriefly(Transport& transport) {
  RankOrderedCollectives collectives(&transport);
  const Rank me{transport.rank(), transport.size(), &collectives};
  CheckReduce(me, DataType::kFloat32, 1000);
  CheckAllreduce(me, DataType::kFloat32, 1000);
  CheckSendAndReceive(me, 100);
  ExpectOk(collectives.Barrier());
}

// The even and the odd ranks at the same time, then sets that overlap.
inline void RunOnSubsets(Transport& transport) {
  std::vector<int> even;
  std::vector<int> odd;
  std::vector<int> all_but_first;
  for (int rank = 0; rank < transport.size(); ++rank) {
    (rank % 2 == 0 ? even : odd).push_back(rank);
    if (rank > 0) all_but_first.push_back(rank);
  }
  RunOnSubset(transport, transport.rank() % 2 == 0 ? even : odd);
  if (!Contains(all_but_first, transport.rank())) return;
  SubsetTransport overlapping(&transport, all_but_first);
  RunBriefly(overlapping);
}

inline void RunEveryCollective(Transport& transport) {
  RunCollectives(transport);
  RunOnSubsets(transport);
  RunBriefly(transport);
}

}  // namespace mydist::testing
