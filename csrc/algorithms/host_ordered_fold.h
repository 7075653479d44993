// HostOrderedFold: folds what all ranks of a set contribute, once it has come to one place, to the
// bits of a Hierarchical: in rank order inside each host, then host by host
// (docs/decisions/0012-hierarchy.md).
// Owned by a Collectives, called by whoever drives that. Goes by tiles that stay in cache; its
// memory, a tile for each host and each rank, is kept between calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "algorithms/two_level_reduction.h"
#include "base/status.h"
#include "kernels/slices.h"
#include "memory/fusion_buffer.h"
#include "world/host_groups.h"

namespace mydist {

class HostOrderedFold {
 public:
  // Without two levels in `groups`: rank order, which is the same then.
  explicit HostOrderedFold(const HostGroups& groups);

  // sources[r]: `count` elements of rank r. `output` is one of them or overlaps none.
  Status Fold(std::span<const void* const> sources, void* output, int64_t count,
              const Reduction& reduction);

  int64_t scratch_capacity_bytes() const { return tiles_.capacity_bytes(); }

 private:
  void FoldTile(const Slice& tile, void* output, uint8_t* room, const TwoLevelReduction& reduction);

  const std::vector<std::vector<int>> members_;  // Of each host; empty: rank order.
  FusionBuffer tiles_;
  // Of the call in progress; kept between calls for their memory only.
  std::vector<const uint8_t*> sources_;     // Host by host.
  std::vector<const void*> contributions_;  // The tile of each, in the type that is folded.
  std::vector<const void*> partials_;       // The tile of each host.
};

}  // namespace mydist
