// Hierarchical: collectives of ranks on several hosts: inside hosts, then between them (reduce). Of
// tensors in host memory or on GPUs, as what it is made of.
// Owned by the engine, one per process set; called like any Collectives. A tensor is cut into
// slices, one for each rank that has a partner on every host; only partners talk across.
// Elements are folded in rank order inside each host, then in the order of the hosts: the same bits
// on all ranks, for every size, and whatever moves the bytes; all ranks at once give them as well.
// Scratch memory is bounded and kept between calls. See docs/decisions/0012-hierarchy.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "algorithms/collectives.h"
#include "algorithms/rank_ordered_collectives.h"
#include "base/export.h"
#include "base/status.h"
#include "kernels/element.h"
#include "memory/fusion_buffer.h"
#include "transport/subset_transport.h"
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

// HierarchicalRoutes: allgather and reducescatter of ranks on several hosts, in host memory.
// Part of a Hierarchical, for what differs from rank to rank in length. Every rank has one partner
// on each other host, to which it gives its own part (allgather) or from which it gets what that
// host has folded for it (reducescatter). A rank with fewer peers than another host has ranks is
// partner of several. Scratch memory is bounded and kept between calls.
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

// What a hierarchy is made of, all for the memory that the tensors are in.
struct HierarchicalParts {
  std::unique_ptr<Collectives> local;  // Spans groups.own_members(), in their order.
  // Spans groups.Column(groups.place); null when another host has no rank with our place.
  std::unique_ptr<Collectives> cross;
  std::function<std::unique_ptr<BatchMemory>()> new_memory;
};

class MYDIST_EXPORT Hierarchical final : public Collectives {
 public:
  // For host memory. `transport` spans the ranks of `groups` and outlives this object. `local`
  // spans groups.own_members(), in their order; null: what is to be done there goes over
  // `transport`, which no other host notices.
  Hierarchical(HostGroups groups, Transport* transport, std::unique_ptr<Collectives> local,
               const HierarchicalLimits& limits = {});
  // For other memory: supports allreduce, reduce, broadcast and barrier, if the parts do.
  Hierarchical(HostGroups groups, HierarchicalParts parts, const HierarchicalLimits& limits = {});

  bool Supports(const BatchTraits& traits) const override;
  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override;
  Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                int root) override;
  Status Broadcast(void* data, int64_t bytes, int root) override;
  Status Barrier() override;

  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts) override {
    return Routes().Allgather(input, output, byte_counts);
  }
  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction) override {
    return Routes().Reducescatter(input, output, counts, reduction);
  }

  // Of its own; what it is built on has more.
  int64_t scratch_capacity_bytes() const;

 private:
  // Flat, where hosts in between would save nothing.
  Collectives* Inner(const BatchTraits&) const override { return flat_.get(); }
  HierarchicalRoutes& Routes();
  void Split(int64_t count, int64_t element_bytes);
  int64_t ChunkLimit(int64_t count, int64_t element_bytes) const;
  int64_t OwnCount() const { return counts_[static_cast<size_t>(groups_.place)]; }
  std::span<const int64_t> ByteCounts(int64_t element_bytes);
  Result<uint8_t*> FoldOnHost(const uint8_t* input, uint8_t* own_part,
                              const TwoLevelReduction& reduction);
  Result<const uint8_t*> ReduceAcross(uint8_t* partial, const TwoLevelReduction& reduction);
  Result<const uint8_t*> ReduceAcrossWide(uint8_t* partial, const TwoLevelReduction& reduction);
  Result<const uint8_t*> Narrowed(const uint8_t* wide, const TwoLevelReduction& reduction);
  // To the tensor's dtype.
  Status Round(const ConvertSegment& wide, const TwoLevelReduction& reduction);
  Status ReduceChunk(const uint8_t* input, uint8_t* output, int64_t count,
                     const TwoLevelReduction& reduction, const HostSeat& root);

  const HostGroups groups_;
  const HierarchicalLimits limits_;
  const std::vector<HostSeat> seats_;  // Of each rank.
  // For host memory only.
  std::unique_ptr<RankOrderedCollectives> flat_;
  std::optional<SubsetTransport> host_transport_;
  std::optional<SubsetTransport> column_transport_;
  std::unique_ptr<Collectives> local_;
  std::unique_ptr<Collectives> cross_;        // Null when another host has no rank with our place.
  std::optional<HierarchicalRoutes> routes_;  // For host memory only.
  const std::unique_ptr<BatchMemory> wide_;   // What this rank hands in, widened.
  const std::unique_ptr<BatchMemory> partial_;  // What this host has folded.
  const std::unique_ptr<BatchMemory> folded_;   // What has been folded across.
  const std::unique_ptr<BatchMemory> narrow_;   // Rounded to the tensor's dtype.
  // Of the call in progress; kept between calls for their memory only.
  std::vector<int64_t> counts_;  // Elements that each rank of this host has, by place.
  std::vector<int64_t> byte_counts_;
};

}  // namespace mydist
