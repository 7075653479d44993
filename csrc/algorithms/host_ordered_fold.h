// HostOrderedFold: folds what all ranks of a set contribute, once it has come to one place, to the
// bits of a Hierarchical: in rank order inside each host, then host by host
// (docs/decisions/0012-hierarchy.md).
// Owned by a Collectives, called by whoever drives that. Goes by tiles that stay in cache; its
// memory, a tile for each host and each rank, is kept between calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/element.h"
#include "kernels/reduction.h"
#include "memory/fusion_buffer.h"
#include "world/topology.h"

namespace mydist {

// TwoLevelReduction: one reduction as two, inside hosts and between them, so that every factor is
// applied once and 16-bit floats are rounded once. Pure data; private to ops/.

struct TwoLevelReduction {
  Reduction on_host;  // With the prescale factor.
  Reduction across;   // With what comes after the fold.
  DataType dtype;     // Of the tensors.
  bool is_wide;       // Partial results are float32, though the tensors are not.

  explicit TwoLevelReduction(const Reduction& whole)
      : on_host(whole), across(whole), dtype(whole.dtype), is_wide(NeedsWidePartials(whole)) {
    on_host.postscale = 1.0;
    on_host.divisor = 1;
    across.prescale = 1.0;
    if (is_wide) on_host.dtype = across.dtype = DataType::kFloat32;
  }

  int64_t partial_bytes() const { return SizeOf(across.dtype); }  // Of one element.

 private:
  // Min and Max round nothing, unless they scale.
  static bool NeedsWidePartials(const Reduction& whole) {
    const bool picks = whole.op == ReduceOp::kMin || whole.op == ReduceOp::kMax;
    return IsHalfWidth(whole.dtype) && !(picks && !whole.ScalesBefore() && !whole.ScalesAfter());
  }
};

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
