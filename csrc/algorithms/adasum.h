// Adasum: adaptive summation of all ranks' vectors, after Maleki et al., "Scaling Distributed
// Training with Adaptive Summation", 2020, arXiv:2006.02924:
//   Adasum(a, b) = (1 - a·b / (2 |a|²)) a + (1 - a·b / (2 |b|²)) b
// Ranks combine in a binary tree in rank order: at level k, each block of 2^k ranks with its right
// neighbour. A last block without a neighbour passes to the next level unchanged, so any number of
// ranks works. Bitwise the same on all ranks, and whatever a tensor is fused with: dot products are
// sums in float64 over fixed slices in rank order. Vectors between levels are float32 (float64 for
// float64); 16-bit types round once, at the end. A zero vector changes nothing; squares of float64
// elements have to stay finite. Owned by a Collectives, driven by its one caller.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/adasum_math.h"
#include "kernels/element.h"
#include "kernels/reduction.h"
#include "memory/fusion_buffer.h"
#include "transport/transport.h"

namespace mydist {

class Adasum {
 public:
  // `transport` outlives this object; null for a job of one rank.
  explicit Adasum(Transport* transport);

  // See Collectives::AdasumAllreduce. Every rank gets its slice of all vectors, combines them
  // there, and hands out the result: 2 n (p - 1) / p elements sent by each in two exchanges, and
  // dot products in one more per level. Scratch memory is up to 4 n bytes more than twice the
  // tensors'; kept between calls.
  Status Allreduce(void* data, std::span<const int64_t> counts, const Reduction& reduction);

  int64_t scratch_capacity_bytes() const {
    return packed_.capacity_bytes() + rows_.capacity_bytes() + wide_rows_.capacity_bytes();
  }

 private:
  void Split(std::span<const int64_t> counts, int64_t element_bytes);
  Status ReducePacked(uint8_t* packed, const Reduction& reduction);
  Status CollectRows(const uint8_t* packed, uint8_t* rows, int64_t element_bytes);
  template <typename T>
  Status ReduceRows(T* rows, T* output, const Reduction& reduction);
  template <typename Wide>
  Status CombineRows(Wide* rows);
  template <typename Wide>
  void MeasurePairs(const Wide* rows, int distance);
  Status SumDotProducts();
  template <typename Wide>
  void CombinePairs(Wide* rows, int distance);

  template <typename Visitor>
  void VisitPieces(Visitor visitor) const;
  template <typename Visitor>
  void VisitPairs(int distance, Visitor visitor) const;
  Slice OwnSlice() const { return slices_[static_cast<size_t>(rank_)]; }
  std::span<const Slice> OwnPieces() const {
    return std::span(pieces_).subspan(static_cast<size_t>(rank_) * tensor_count_, tensor_count_);
  }
  DotProducts* BlockOf(int rank) { return dots_.data() + static_cast<size_t>(rank) * dot_count_; }

  const int rank_;
  const int size_;
  TransferBatch transfers_;
  FusionBuffer packed_;     // All tensors, rank by rank; not for one tensor.
  FusionBuffer rows_;       // Our slice of every rank's vectors, as it came.
  FusionBuffer wide_rows_;  // The same as float32, for the 16-bit types.
  // Of the call in progress; the vectors keep their memory.
  size_t tensor_count_ = 0;
  size_t dot_count_ = 0;       // Of each rank, at the level in progress.
  std::vector<Slice> pieces_;  // [rank × tensors + tensor], in elements from the tensor's start.
  std::vector<Slice> slices_;  // Of each rank, in elements of the packed vector.
  std::vector<DotProducts> dots_;  // [rank][pair of the level][tensor].
};

}  // namespace mydist
