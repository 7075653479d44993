// Hierarchical: collectives of ranks on several hosts: inside hosts, then between them (reduce).
// Owned by the engine, one per process set; called like any Collectives. A tensor is cut into
// slices, one for each rank that has a partner on every host; only partners talk across.
// Elements are folded in rank order inside each host, then in the order of the hosts: the same bits
// on all ranks, for every size, and whatever moves the bytes; not those of the flat order. Scratch
// memory is bounded and kept between calls. See docs/decisions/0012-hierarchy.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/export.h"
#include "base/result.h"
#include "ops/collectives.h"
#include "ops/fusion_buffer.h"
#include "ops/rank_ordered_collectives.h"
#include "ops/slices.h"
#include "ops/subset_transport.h"
#include "ops/transfer_batch.h"
#include "ops/two_level_reduction.h"
#include "world/host_groups.h"

namespace mydist {

// Must be equal on all ranks. Results do not depend on it.
struct HierarchicalLimits {
  // Up to this much, one rank of each host speaks for its host: fewer messages.
  int64_t one_slice_bytes = int64_t{32} << 10;
  // Worked on at a time, of a tensor or of all contributions together.
  int64_t chunk_bytes = int64_t{8} << 20;
};

class MYDIST_EXPORT Hierarchical final : public Collectives {
 public:
  // `transport` spans the ranks of `groups` and outlives this object. `local` spans
  // groups.own_members(), in their order; null: what is to be done there goes over `transport`,
  // which no other host notices.
  Hierarchical(HostGroups groups, Transport* transport, std::unique_ptr<Collectives> local,
               const HierarchicalLimits& limits = {});

  bool Supports(const BatchTraits& traits) const override { return flat_.Supports(traits); }
  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override;
  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts) override;
  Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                int root) override;
  Status Broadcast(void* data, int64_t bytes, int root) override;
  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction) override;
  Status Barrier() override;

  // Flat: hosts in between would save nothing.
  Status AdasumAllreduce(void* data, std::span<const int64_t> counts,
                         const Reduction& reduction) override {
    return flat_.AdasumAllreduce(data, counts, reduction);
  }
  Status Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                int root) override {
    return flat_.Gather(input, output, byte_counts, root);
  }
  Status Scatter(const void* input, std::span<const int64_t> byte_counts, void* output,
                 int root) override {
    return flat_.Scatter(input, byte_counts, output, root);
  }
  Status Send(const void* data, int64_t bytes, int peer) override {
    return flat_.Send(data, bytes, peer);
  }
  Status Receive(void* data, int64_t bytes, int peer) override {
    return flat_.Receive(data, bytes, peer);
  }
  Status Alltoall(const void* input, std::span<const int64_t> send_bytes, void* output,
                  std::span<const int64_t> receive_bytes) override {
    return flat_.Alltoall(input, send_bytes, output, receive_bytes);
  }

  // Of its own; what it is built on has more.
  int64_t scratch_capacity_bytes() const {
    return wide_.capacity_bytes() + partial_.capacity_bytes() + folded_.capacity_bytes() +
           narrow_.capacity_bytes();
  }

 private:
  struct Seat {
    int host;
    int place;
  };
  // Round `index` takes at most `limit` of every rank's part (slices_).
  struct Round {
    int64_t index;
    int64_t limit;
  };

  void FindRoutes();
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
                     const TwoLevelReduction& reduction, const Seat& root);

  // hierarchical_routes.cc
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

  const HostGroups groups_;
  const HierarchicalLimits limits_;
  const int rank_;
  RankOrderedCollectives flat_;
  TransferBatch transfers_;
  std::optional<SubsetTransport> host_transport_;
  std::unique_ptr<Collectives> local_;
  // Null when another host has no rank with our place.
  std::optional<SubsetTransport> column_transport_;
  std::optional<RankOrderedCollectives> cross_;
  std::vector<Seat> seats_;  // Of each rank.
  // Of each rank of this host: itself, and the ranks elsewhere that talk to this host through it.
  std::vector<std::vector<int>> routes_;
  std::vector<int> partners_;  // On each host; ourselves on ours.
  FusionBuffer wide_;          // What this rank hands in, widened or in the order of the routes.
  FusionBuffer partial_;       // What this host has folded.
  FusionBuffer folded_;        // What partners contribute, or what has been folded across.
  FusionBuffer narrow_;        // Rounded to the tensor's dtype.
  // Of the call in progress; kept between calls for their memory only.
  std::vector<int64_t> counts_;  // Elements that each rank of this host has, by place.
  std::vector<int64_t> byte_counts_;
  std::vector<Slice> slices_;  // Of each rank of the set.
  std::vector<const void*> sources_;
};

}  // namespace mydist
