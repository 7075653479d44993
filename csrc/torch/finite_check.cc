#include "torch/finite_check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>

#include "torch/gpu_order.h"
#include "torch/tensor_memory.h"

namespace mydist {
namespace {

// The input as the caller has it: compression makes it narrower only later.
at::Tensor InputOf(const Submission& submission) {
  const Request& request = submission.request;
  const at::ScalarType dtype = submission.is_wide ? at::kFloat : ToScalarType(request.dtype);
  return at::from_blob(const_cast<void*>(submission.input),
                       {request.shape.ElementCount().value_or(0)},
                       at::TensorOptions().dtype(dtype).device(DeviceOf(submission)));
}

bool MayBeInfinite(ReduceOp op) { return op == ReduceOp::kMin || op == ReduceOp::kMax; }

InputValues ValuesOf(const Submission& submission) {
  const at::Tensor input = InputOf(submission);
  if (!input.is_floating_point() && !input.is_complex()) return InputValues::kAccepted;
  if (at::isfinite(input).all().item<bool>()) return InputValues::kAccepted;
  if (at::isnan(input).any().item<bool>()) return InputValues::kNan;
  return MayBeInfinite(submission.request.reduce_op) ? InputValues::kAccepted
                                                     : InputValues::kInfinite;
}

}  // namespace

void NoteValues(std::vector<Submission>& submissions) {
  const at::NoGradGuard no_grad;
  for (Submission& submission : submissions) {
    if (!Reduces(submission.request.op) || submission.input == nullptr) continue;
    submission.request.values = ValuesOf(submission);
  }
}

}  // namespace mydist
