// MemorySpace: where the tensors of a collective lie, for algorithms that move bytes over a
// Transport and fold what has come: host memory, or that of a GPU whose memory the transport takes.
// Owned by a Collectives and driven by its one caller. What is asked for is done in order; in the
// memory of a GPU maybe later, but before the next Exchange begins. Errors: those of the memory and
// of the transport.
#pragma once

#include <cstdint>

#include "algorithms/collectives.h"
#include "base/result.h"
#include "kernels/rank_fold.h"
#include "transport/transfer_batch.h"

namespace mydist {

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

}  // namespace mydist
