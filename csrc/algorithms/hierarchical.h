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
#include "algorithms/hierarchical_routes.h"
#include "algorithms/host_ordered_fold.h"
#include "algorithms/rank_ordered_collectives.h"
#include "base/export.h"
#include "base/status.h"
#include "memory/fusion_buffer.h"
#include "transport/subset_transport.h"
#include "world/topology.h"

namespace mydist {

// What a hierarchy is made of, all for the memory that the tensors are in.
struct HierarchicalParts {
  std::unique_ptr<Collectives> local;  // Spans groups.own_members(), in their order.
  // Spans groups.Column(groups.place); null when another host has no rank with our place.
  std::unique_ptr<Collectives> cross;
  std::function<std::unique_ptr<BatchMemory>()> new_memory;
};

class MYDIST_EXPORT Hierarchical final : public ForwardingCollectives {
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
  Collectives& Inner(const BatchTraits& traits) const override;
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
