// ShmCollectives: collectives among ranks of one host, through slots of shared memory (reduce).
// Owned by the engine, one per process set; called like any Collectives. Bytes pass through the
// cache: tensors are handed in and out in chunks that fit there. Elements are folded in rank order,
// so results are bitwise those of RankOrderedCollectives. Allocates nothing but what that does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/export.h"
#include "ops/collectives.h"
#include "ops/rank_ordered_collectives.h"
#include "ops/shm/shm_port.h"
#include "ops/slices.h"
#include "ops/subset_transport.h"

namespace mydist::shm {

// Must be equal on all ranks. Results do not depend on it.
struct ShmLimits {
  // Allreduce: up to this much read from peers, everybody folds everything; one wait.
  int64_t one_shot_bytes = int64_t{64} << 10;
};

class MYDIST_EXPORT ShmCollectives final : public Collectives {
 public:
  // `port` outlives this object. `members`: indices in its arena, ascending, the own among them.
  ShmCollectives(ShmPort* port, std::vector<int> members, const ShmLimits& limits = {});

  bool Supports(const BatchTraits& traits) const override { return rest_.Supports(traits); }
  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override;
  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts) override;
  Status Broadcast(void* data, int64_t bytes, int root) override;
  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction) override;
  Status Barrier() override;

  // Over the rings.
  Status AdasumAllreduce(void* data, std::span<const int64_t> counts,
                         const Reduction& reduction) override {
    return rest_.AdasumAllreduce(data, counts, reduction);
  }
  Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                int root) override {
    return rest_.Reduce(input, output, count, reduction, root);
  }
  Status Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                int root) override {
    return rest_.Gather(input, output, byte_counts, root);
  }
  Status Scatter(const void* input, std::span<const int64_t> byte_counts, void* output,
                 int root) override {
    return rest_.Scatter(input, byte_counts, output, root);
  }
  Status Send(const void* data, int64_t bytes, int peer) override {
    return rest_.Send(data, bytes, peer);
  }
  Status Receive(void* data, int64_t bytes, int peer) override {
    return rest_.Receive(data, bytes, peer);
  }
  Status Alltoall(const void* input, std::span<const int64_t> send_bytes, void* output,
                  std::span<const int64_t> receive_bytes) override {
    return rest_.Alltoall(input, send_bytes, output, receive_bytes);
  }

 private:
  // Part of an allreduce that one step hands in; element counts and offsets.
  struct Chunk {
    uint8_t* data;
    int64_t count;
    int64_t element_bytes;
  };

  Status OneShotAllreduce(uint8_t* data, int64_t count, const Reduction& reduction);
  Status TwoShotAllreduce(uint8_t* data, int64_t count, const Reduction& reduction);
  int64_t ChunkLimit(int64_t element_bytes) const;
  Slice SliceOf(const Chunk& chunk, int rank) const;
  void HandIn(const Chunk& chunk, uint8_t* slot) const;
  void FoldOwnSlice(const Chunk& chunk, const Reduction& reduction);
  void ShowOwnSlice(const Chunk& chunk, uint8_t* slot) const;
  void CopyOut(const Chunk& chunk) const;
  template <typename FindSource>
  void CollectSources(FindSource find);
  const uint8_t* SlotOf(int rank) const {
    return port_->steps().SlotOf(members_[static_cast<size_t>(rank)]);
  }

  ShmPort* const port_;
  const std::vector<int> members_;
  std::vector<int> peers_;  // Members but for the own.
  SubsetTransport transport_;
  RankOrderedCollectives rest_;
  const ShmLimits limits_;
  const int rank_;
  const int size_;
  std::vector<const void*> sources_;  // Kept between calls for its memory only.
};

}  // namespace mydist::shm
