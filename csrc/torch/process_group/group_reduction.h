// GroupReduction: how torch.distributed asks for a reduction, and its execution on a lane.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "base/status.h"
#include "kernels/reduction.h"
#include "lanes/group_lane.h"
#include "torch/process_group/dense_tensors.h"

namespace mydist {

// Throws ValueError unless the tensor is a dense one on the CPU. Any dtype moves, as bytes.
void CheckMoved(const at::Tensor& tensor, const char* call);
// As CheckMoved, and throws when an element of a result could not be written alone.
void CheckWritten(const at::Tensor& tensor, const char* call);

class GroupReduction {
 public:
  // `tensor` gets the result. Throws ValueError when it cannot be written, or the operation has no
  // meaning for its dtype. Sums and products
  // of bool are "or" and "and", as torch has them.
  GroupReduction(const c10d::ReduceOp& op, const at::Tensor& tensor, const char* call);

  LaneCall Call(OpKind op, int64_t count, int root = -1) const {
    return {op, reduction_.dtype, count, reduction_.op, root, reduction_.prescale, 1, bitwise_};
  }
  DataType dtype() const { return reduction_.dtype; }

  // In place. Every rank has the same bits.
  Status Allreduce(const LaneSite& site, const InAndOut& memory) const;
  // The same for tensors of this dtype, as one operation of the ranks.
  Status AllreducePacked(const LaneSite& site, const std::vector<at::Tensor>& tensors) const;
  // As Allreduce, on the root; elsewhere the memory is not changed.
  Status Reduce(const LaneSite& site, const InAndOut& memory, int root) const;
  // `input` has counts[r] elements for rank r, one after the other.
  Status Reducescatter(const LaneSite& site, const at::Tensor& input,
                       const std::vector<int64_t>& counts, const InAndOut& output) const;

 private:
  Result<Collectives*> AlgorithmFor(const LaneSite& site, OpKind op, int64_t elements) const;
  // The inputs of all ranks combined bit by bit. For `elements` of bytes that may be small only:
  // every rank gets all inputs.
  Result<at::Tensor> Folded(const LaneSite& site, const at::Tensor& input) const;

  Reduction reduction_;
  Bitwise bitwise_ = Bitwise::kNone;
};

// SparseSum: an all_reduce of a sparse COO tensor on a lane: each member gets the indices and
// values of all others and adds them up.
class SparseSum {
 public:
  // Throws ValueError unless `op` is SUM or AVG and the tensor one that can be added up.
  SparseSum(const c10d::ReduceOp& op, const at::Tensor& tensor);

  LaneCall Call() const { return call_; }
  // `tensor` gets the sum, with every index once. Its former number of values may differ between
  // members. Every member has the same bits.
  Status Run(const LaneSite& site, const at::Tensor& tensor) const;

 private:
  LaneCall call_;
};

}  // namespace mydist
