// HostSpace: host memory as a MemorySpace: nothing is ever left to be done.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithms/collectives.h"
#include "algorithms/host_ordered_fold.h"
#include "base/status.h"
#include "kernels/rank_fold.h"
#include "memory/fusion_buffer.h"
#include "transport/transport.h"

namespace mydist {

// MemorySpace: where the tensors of a collective lie, for algorithms that move bytes over a
// Transport and fold what has come: host memory, or that of a GPU whose memory the transport takes.
// Owned by a Collectives and driven by its one caller. What is asked for is done in order; in the
// memory of a GPU maybe later, but before the next Exchange begins. Errors: those of the memory and
// of the transport.

class MemorySpace {
 public:
  virtual ~MemorySpace() = default;

  // Whether tensors lie here and what is to be folded can be.
  virtual bool Supports(const BatchTraits& traits) const = 0;

  // Scratch memory, aligned to RankFold::kAlignmentBytes, valid until the next call for the same
  // use; it grows, and what it held is lost then.
  virtual Result<uint8_t*> ReserveContributions(int64_t bytes) = 0;
  virtual Result<uint8_t*> ReserveResult(int64_t bytes) = 0;
  virtual int64_t scratch_capacity_bytes() const = 0;

  // `target` is `source`, or they do not overlap.
  virtual Status Copy(void* target, const void* source, int64_t bytes) = 0;
  virtual Status Fold(const RankFold& fold) = 0;

  // Moves what has been collected, once everything before it is done.
  virtual Status Exchange(TransferBatch& transfers) = 0;
};

class HostSpace final : public MemorySpace {
 public:
  // `groups`: the hosts of the ranks, whose order a fold keeps; without two levels that of ranks.
  explicit HostSpace(const HostGroups& groups) : fold_(groups) {}

  bool Supports(const BatchTraits& traits) const override;
  Result<uint8_t*> ReserveContributions(int64_t bytes) override {
    return contributions_.Reserve(bytes);
  }
  Result<uint8_t*> ReserveResult(int64_t bytes) override { return result_.Reserve(bytes); }
  int64_t scratch_capacity_bytes() const override {
    return contributions_.capacity_bytes() + result_.capacity_bytes() +
           fold_.scratch_capacity_bytes();
  }
  Status Copy(void* target, const void* source, int64_t bytes) override;
  Status Fold(const RankFold& fold) override;
  Status Exchange(TransferBatch& transfers) override { return transfers.Exchange(); }

 private:
  HostOrderedFold fold_;
  FusionBuffer contributions_;
  FusionBuffer result_;
  std::vector<const void*> sources_;  // Of the call in progress; kept for its memory.
};

}  // namespace mydist
