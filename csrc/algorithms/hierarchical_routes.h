// HierarchicalRoutes: allgather and reducescatter of ranks on several hosts, in host memory.
// Part of a Hierarchical, for what differs from rank to rank in length. Every rank has one partner
// on each other host, to which it gives its own part (allgather) or from which it gets what that
// host has folded for it (reducescatter). A rank with fewer peers than another host has ranks is
// partner of several. Scratch memory is bounded and kept between calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "algorithms/collectives.h"
#include "algorithms/host_ordered_fold.h"
#include "base/status.h"
#include "kernels/element.h"
#include "memory/fusion_buffer.h"
#include "transport/transport.h"
#include "world/topology.h"

namespace mydist {

// How much a Hierarchical works on at a time. Equal on all ranks; results do not depend on it.

struct HierarchicalLimits {
  // Up to this much, one rank of each host speaks for its host: fewer messages.
  int64_t one_slice_bytes = int64_t{32} << 10;
  // Worked on at a time, of a tensor or of all contributions together.
  int64_t chunk_bytes = int64_t{8} << 20;
};

class HierarchicalRoutes {
 public:
  // `transport` spans the ranks of `groups`, `local` groups.own_members(); both outlive this
  // object.
  HierarchicalRoutes(const HostGroups& groups, Transport* transport, Collectives* local,
                     const HierarchicalLimits& limits);

  // As in Collectives.
  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts);
  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction);

  int64_t scratch_capacity_bytes() const {
    return packed_.capacity_bytes() + partial_.capacity_bytes() + others_.capacity_bytes() +
           folded_.capacity_bytes();
  }

 private:
  // Round `index` takes at most `limit` of every rank's part (slices_).
  struct Round {
    int64_t index;
    int64_t limit;
  };

  void SplitByCounts(std::span<const int64_t> counts);
  int64_t RoundLimit(int64_t element_bytes) const;
  Slice PartOf(int rank, const Round& round) const {
    return RoundOf(slices_[static_cast<size_t>(rank)], round.limit, round.index);
  }
  int64_t CountRoutes(const Round& round);
  template <typename Visitor>
  void VisitRoutes(const Round& round, Visitor visitor) const;
  Status GatherRound(const uint8_t* input, uint8_t* output, const Round& round);
  Status ScatterRound(const uint8_t* input, uint8_t* output, const Round& round,
                      const TwoLevelReduction& reduction);
  Result<uint8_t*> FoldRoutes(const uint8_t* input, const Round& round,
                              const TwoLevelReduction& reduction);
  Status SwapPartials(uint8_t* block, const Round& round, int64_t element_bytes);

  const int rank_;
  const size_t size_;
  const size_t place_;
  const HierarchicalLimits limits_;
  Collectives* const local_;
  TransferBatch transfers_;
  // Of each rank of this host: itself, and the ranks elsewhere that talk to this host through it.
  std::vector<std::vector<int>> routes_;
  std::vector<int> partners_;  // On each host; ourselves on ours.
  FusionBuffer packed_;        // What this rank hands in or gets, in the order of the routes.
  FusionBuffer partial_;       // What this host has folded.
  FusionBuffer others_;        // What partners have folded.
  FusionBuffer folded_;        // Before it is rounded to the tensor's dtype.
  // Of the call in progress; kept between calls for their memory only.
  std::vector<int64_t> counts_;  // Of each rank of this host, by place.
  std::vector<Slice> slices_;    // Of each rank of the set.
  std::vector<const void*> sources_;
};

}  // namespace mydist
