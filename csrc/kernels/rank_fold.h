// RankFold: what every rank of a set hands in becomes one result, element by element, from rank 0
// on: the step of a reduction that is no transfer. Pure data; done by a MemorySpace, and on a GPU
// by a kernel.
#pragma once

#include <cstdint>

#include "kernels/reduction.h"

namespace mydist {

struct RankFold {
  // Contributions of the others lie one after the other, in their order, each at a multiple of this
  // from the first, which is aligned to it: whole words for the widest access.
  static constexpr int64_t kAlignmentBytes = 64;
  static constexpr int64_t Stride(int64_t bytes) {
    return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  }
  // How many bytes behind `others` the contribution of `peer`, not ours, begins.
  static constexpr int64_t Offset(int peer, int rank, int64_t stride) {
    return (peer < rank ? peer : peer - 1) * stride;
  }

  const void* own = nullptr;     // What rank `rank` of `size` hands in.
  const void* others = nullptr;  // Null when there are none.
  int64_t stride = 0;
  int rank = 0;
  int size = 1;
  void* output = nullptr;  // May be `own`, else overlaps nothing.
  int64_t count = 0;       // Of elements.
  Reduction reduction{};   // Resolved; its op is not kAdasum.
};

// Whether kernels for GPUs can: all that has a meaning but products of complex numbers.
inline bool FoldsOnDevice(ReduceOp op, DataType dtype) {
  if (op == ReduceOp::kAdasum || !HasMeaning(op, dtype)) return false;
  return op != ReduceOp::kProduct || !IsComplex(dtype);
}

}  // namespace mydist
