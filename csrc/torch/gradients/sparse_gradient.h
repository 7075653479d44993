// SparseGradient: what travels for a sparse gradient, and what becomes of it. The ranks gather the
// rows each of them touched: positions and values are two allgathers of one group. Owned by the
// GradientReducer, which holds the GIL; the engine writes `late` in between.
// Duplicate positions are added up before the rows leave and again when all have arrived.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/submission.h"
#include "torch/in_flight.h"

namespace mydist {

class SparseGradient {
 public:
  // The rows of a COO tensor; its values travel as `wire`.
  SparseGradient(const at::Tensor& gradient, at::ScalarType wire);
  // No row at all, of a gradient of this parameter with this many sparse dimensions.
  SparseGradient(const at::Tensor& parameter, int64_t sparse_dims, at::ScalarType wire);

  // The two requests; `request` says what they are called and which ranks take part.
  std::vector<Submission> Submissions(const Request& request) const;
  // Everything the engine was given a pointer to.
  std::vector<at::Tensor> memory() const { return {positions_, values_}; }
  // The values as they travel.
  const at::Tensor& values() const { return values_; }

  // What the gathered rows will be in.
  const std::shared_ptr<LateOutputs>& late() const { return late_; }

  // Once complete: `factor` × the sum over the ranks, coalesced, in `dtype`.
  at::Tensor Sum(at::ScalarType dtype, double factor) const;

 private:
  std::vector<int64_t> shape_;
  at::Tensor positions_;  // [rows, sparse dimensions] int64
  at::Tensor values_;     // [rows, dense dimensions …]
  std::shared_ptr<LateOutputs> late_ = std::make_shared<LateOutputs>(2);
};

}  // namespace mydist
