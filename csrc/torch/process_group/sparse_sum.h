// SparseSum: an all_reduce of a sparse COO tensor on a lane: each member gets the indices and
// values of all others and adds them up.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "base/status.h"
#include "lanes/group_lane.h"

namespace mydist {

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
