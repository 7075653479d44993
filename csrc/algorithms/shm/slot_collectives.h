// SlotCollectives: collectives through slots of shared memory (reduce): for what is small, and for
// tensors that their peers cannot reach. Owned by the ShmCollectives, for a team of at least two.
// Bytes pass through the cache: tensors are handed in and out in chunks that fit there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "algorithms/shm/shm_team.h"
#include "kernels/element.h"
#include "kernels/reduction.h"

namespace mydist::shm {

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
    uint8_t* slot;  // Its copy; whoever folds a slice of it does so there.
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

}  // namespace mydist::shm
