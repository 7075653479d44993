// ShmCollectives: collectives among ranks of one host (reduce): each goes within the posts, through
// slots, in place, or over the rings, whichever is fastest for its size and where its tensors lie.
// Owned by the engine, one per process set; called like any Collectives. Elements are folded in
// rank order, so results are bitwise those of RankOrderedCollectives. Once the largest call has
// been seen, nothing is allocated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "algorithms/collectives.h"
#include "algorithms/rank_ordered_collectives.h"
#include "algorithms/shm/direct_collectives.h"
#include "base/export.h"
#include "kernels/element.h"
#include "kernels/reduction.h"
#include "transport/shm_transport.h"
#include "transport/subset_transport.h"

namespace mydist::shm {

// SlotCollectives: collectives through slots of shared memory (reduce): for what is small, and for
// tensors that their peers cannot reach. Owned by the ShmCollectives, for a team of at least two.
// Bytes pass through the cache: tensors are handed in and out in chunks that fit there.
class SlotCollectives {
 public:
  // `team` outlives this object.
  explicit SlotCollectives(const ShmTeam& team) : team_(team) {}

  // All: as in Collectives; kPeerLost.

  // At most kMessageBytes, within the posts: one wait, no slot.
  Status MessageAllreduce(uint8_t* data, int64_t count, const Reduction& reduction);
  // At most a slot; everybody folds everything: one wait.
  Status OneShotAllreduce(uint8_t* data, int64_t count, const Reduction& reduction);
  Status TwoShotAllreduce(uint8_t* data, int64_t count, const Reduction& reduction);
  // The own part is in `output` already.
  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts);
  Status Broadcast(void* data, int64_t bytes, int root);
  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction);

 private:
  // Part of an allreduce that one step hands in; element counts and offsets.
  struct Chunk {
    uint8_t* data;
    int64_t count;
    int64_t element_bytes;
    uint8_t* slot;  // Its copy; ranks fold their slices of it there.
  };
  // In the second-level cache of each rank, with the chunk before and the tensor's own.
  static constexpr int64_t kChunkBytes = int64_t{256} << 10;

  int64_t ChunkLimit(int64_t element_bytes) const;
  Slice SliceOf(const Chunk& chunk, int rank) const;
  void CopyOthersSlices(uint8_t* to, const uint8_t* from, const Chunk& chunk) const;
  void FoldOwnSlice(const Chunk& chunk, const Reduction& reduction);
  template <typename FindSource>
  void CollectSources(FindSource find);

  const ShmTeam& team_;
  // Kept between calls for their memory only.
  std::vector<const void*> sources_;
  std::vector<void*> outputs_;
};

// Must be equal on all ranks. Results do not depend on it.
struct ShmLimits {
  // Up to this many bytes of a tensor go within the posts; at most kMessageBytes.
  int64_t message_bytes = kMessageBytes;
  // Up to this much read from peers goes through slots wherever the tensors lie: one wait is
  // cheaper than no copy.
  int64_t slot_bytes = int64_t{2} << 10;
  // Allreduce through slots: up to this much read from peers, everybody folds everything.
  int64_t one_shot_bytes = int64_t{64} << 10;
  // Work on tensors in place.
  bool direct = true;
};

class MYDIST_EXPORT ShmCollectives final : public Collectives {
 public:
  // `port` outlives this object. `members`: indices in its arena, ascending, the own among them.
  ShmCollectives(ShmPort* port, std::vector<int> members, const ShmLimits& limits = {});

  bool Supports(const BatchTraits& traits) const override { return rest_.Supports(traits); }
  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override;
  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts) override;
  Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                int root) override;
  // Over the rings.
  Status AdasumAllreduce(void* data, std::span<const int64_t> counts,
                         const Reduction& reduction) override {
    return rest_.AdasumAllreduce(data, counts, reduction);
  }
  Status Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                int root) override;
  Status Scatter(const void* input, std::span<const int64_t> byte_counts, void* output,
                 int root) override;
  Status Send(const void* data, int64_t bytes, int peer) override;
  Status Receive(void* data, int64_t bytes, int peer) override;
  Status Broadcast(void* data, int64_t bytes, int root) override;
  Status Alltoall(const void* input, std::span<const int64_t> send_bytes, void* output,
                  std::span<const int64_t> receive_bytes) override;
  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction) override;
  Status Barrier() override { return team_.steps().Publish(team_.peers); }

 private:
  bool IsSmall(int64_t bytes) const { return bytes <= limits_.slot_bytes / (team_.size - 1); }

  const ShmTeam team_;
  SlotCollectives slots_;
  DirectCollectives direct_;
  SubsetTransport transport_;
  RankOrderedCollectives rest_;
  const ShmLimits limits_;
  const bool is_direct_;  // The same on all ranks.
};

}  // namespace mydist::shm
