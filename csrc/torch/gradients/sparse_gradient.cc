#include "torch/gradients/sparse_gradient.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <utility>

#include "torch/tensor_adapter.h"

namespace mydist {
namespace {

// Ranks whose gradients differ in shape must not gather rows: the shape is not part of an
// allgather, so it is part of what the ranks have to agree on, the group.
std::string GroupName(const std::string& name, at::IntArrayRef shape) {
  return "sparse gradient of '" + name + "' of shape " + Shape(shape.vec()).ToString();
}

}  // namespace

SparseGradient::SparseGradient(const at::Tensor& gradient, at::ScalarType wire)
    : shape_(gradient.sizes().vec()) {
  const at::NoGradGuard no_grad;
  const at::Tensor coalesced = gradient.coalesce();
  positions_ = coalesced.indices().t().contiguous();
  values_ = Dense(coalesced.values().to(wire));
}

SparseGradient::SparseGradient(const at::Tensor& parameter, int64_t sparse_dims,
                               at::ScalarType wire)
    : shape_(parameter.sizes().vec()),
      positions_(EmptyOn(parameter.device(), {0, sparse_dims}, at::kLong)) {
  std::vector<int64_t> value_shape{0};
  value_shape.insert(value_shape.end(), shape_.begin() + sparse_dims, shape_.end());
  values_ = EmptyOn(parameter.device(), value_shape, wire);
}

std::vector<Submission> SparseGradient::Submissions(const Request& request) const {
  const at::Tensor* const tensors[] = {&positions_, &values_};
  std::vector<Submission> submissions;
  for (size_t i = 0; i < 2; ++i) {
    const at::Tensor& tensor = *tensors[i];
    Submission submission;
    submission.request = request;
    submission.request.op = OpKind::kAllgather;
    submission.request.group = GroupName(request.name, shape_);
    submission.request.group_size = 2;
    submission.request.dtype = *ToDataType(tensor.scalar_type());
    submission.request.shape = ShapeOf(tensor);
    submission.input = tensor.const_data_ptr();
    submission.request.device = DeviceNumber(tensor.device());
    submission.order = NewOrder(tensor.device());
    submission.allocate = AllocatorOf(
        late_, i,
        {.dtype = tensor.scalar_type(), .device = tensor.device(), .order = submission.order});
    submissions.push_back(std::move(submission));
  }
  // The values carry the parameter's name: a dense gradient elsewhere has to meet them.
  submissions[0].request.name += " (positions)";
  return submissions;
}

at::Tensor SparseGradient::Sum(at::ScalarType dtype, double factor) const {
  const at::NoGradGuard no_grad;
  at::Tensor values = late_->tensors[1].to(dtype);
  if (factor != 1.0) values = values.mul(factor);
  const at::Tensor positions = late_->tensors[0].t();
  return at::sparse_coo_tensor(positions, values, shape_).coalesce();
}

}  // namespace mydist
