// How a gradient is sent, and how its result is stored.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>

#include "memory/shm/stream_copy.h"
#include "torch/collective_call.h"
#include "torch/gpu_order.h"
#include "torch/gradients/gradient_reducer.h"
#include "torch/tensor_adapter.h"

namespace mydist {
namespace {

// Ranks whose gradients differ in shape must not gather rows: the shape is not part of an
// allgather, so it is part of what the ranks have to agree on, the group.
std::string GroupName(const std::string& name, at::IntArrayRef shape) {
  return "sparse gradient of '" + name + "' of shape " + Shape(shape.vec()).ToString();
}

// set_data also detaches the version counter.
void MoveTo(at::Tensor& tensor, const at::Tensor& place) {
  const auto version = static_cast<uint32_t>(VersionOf(tensor));
  tensor.set_data(place);
  tensor.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(version));
}

// A slot's lines are in the cache of a peer, which has written the last result there, or in none.
void CopyToSlot(const at::Tensor& slot, const at::Tensor& tensor) {
  const bool is_plain = tensor.scalar_type() == slot.scalar_type() && tensor.is_contiguous() &&
                        !tensor.is_conj() && !tensor.is_neg() && tensor.is_cpu();
  // With several threads torch copies as fast as memory gives.
  if (!is_plain || at::get_num_threads() > 1) {
    slot.copy_(tensor);
    return;
  }
  shm::StreamCopy(slot.mutable_data_ptr(), tensor.const_data_ptr(),
                  static_cast<int64_t>(slot.nbytes()));
}

Status GradientReplaced(const std::string& name) {
  return Status::InvalidArgument(
      "Gradient of '" + name +
      "' was replaced or cleared between backward and step, while it was being reduced. Call "
      "zero_grad() after step() (or before backward), or synchronize() first.");
}

Status GradientChanged(const std::string& name) {
  return Status::InvalidArgument(
      "Gradient of '" + name +
      "' was changed in place between backward and step, while it was being reduced (zero_grad, "
      "clipping or GradScaler.unscale_). Call optimizer.synchronize() before changing gradients.");
}

}  // namespace

GradientsInFlight& GradientsInFlight::Instance() {
  static auto* const instance = new GradientsInFlight;
  return *instance;
}

Status GradientsInFlight::Check(const at::Tensor& parameter, const std::string& name,
                                ProcessSetId process_set) const {
  if (parameters_.contains(parameter.unsafeGetTensorImpl())) {
    return Status::InvalidArgument(
        "Gradient of '" + name +
        "' is already being reduced by another DistributedOptimizer that has the same parameter. "
        "Delete the one that is no longer used, or wrap one optimizer with all parameter groups.");
  }
  if (names_.contains({process_set, name})) {
    return Status::InvalidArgument(
        "Two DistributedOptimizers have a parameter named '" + name +
        "' and reduce its gradient at the same time. Pass named_parameters with names of their own "
        "to each, e.g. [('generator.' + name, p) for name, p in model.named_parameters()].");
  }
  return Status::Ok();
}

void GradientsInFlight::Add(const at::Tensor& parameter, const std::string& name,
                            ProcessSetId process_set) {
  const Key key{process_set, name};
  parameters_.emplace(parameter.unsafeGetTensorImpl(), key);
  names_.insert(key);
}

void GradientsInFlight::Remove(const at::Tensor& parameter) {
  const auto found = parameters_.find(parameter.unsafeGetTensorImpl());
  if (found == parameters_.end()) return;
  names_.erase(found->second);
  parameters_.erase(found);
}

std::string GradientOf(const std::string& name) { return "gradient of '" + name + "'"; }

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

std::vector<Submission> SparseGradient::Submissions(const std::string& name,
                                                    ProcessSetId process_set) const {
  const CallTraits traits{
      .op = OpKind::kAllgather, .group = GroupName(name, shape_), .process_set = process_set};
  std::vector<Submission> submissions;
  for (size_t i = 0; i < 2; ++i) {
    const at::Tensor& tensor = i == 0 ? positions_ : values_;
    Submission submission = NewSubmission(traits, name, *ToDataType(tensor.scalar_type()),
                                          ShapeOf(tensor), tensor.device(), 2);
    submission.input = tensor.const_data_ptr();
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

at::ScalarType GradientReducer::WireDtype(at::ScalarType dtype) const {
  if (options_.wire_format == WireFormat::kAsIs) return dtype;
  if (dtype != at::kFloat && dtype != at::kDouble) return dtype;
  return options_.wire_format == WireFormat::kFloat16 ? at::kHalf : at::kBFloat16;
}

bool GradientReducer::IsCastByEngine(const at::Tensor& tensor) const {
  return tensor.is_cuda() && tensor.scalar_type() == at::kFloat &&
         WireDtype(at::kFloat) != at::kFloat && tensor.numel() <= kMostCastElements;
}

// A gradient on a GPU that can do without a slot gets one once: a program that does not keep it
// makes new gradients in every step. A copy to the slot would be a launch for each gradient;
// packing takes one for all. A gradient that later needs a slot gets other memory.
at::Tensor GradientReducer::TakeSlot(size_t index, const at::Tensor& shaped, bool may_do_without) {
  const at::ScalarType dtype = WireDtype(shaped.scalar_type());
  const bool had_one = shaped.is_cuda() && parameters_[index].had_slot;
  if (had_one && may_do_without) {
    slots_.GiveUp(index);
    return {};
  }
  at::Tensor slot = slots_.Take(index, shaped.sizes(), dtype, shaped.device());
  if (slot.defined()) parameters_[index].had_slot = true;
  return slot.defined() || !had_one ? slot : EmptyOn(shaped.device(), shaped.sizes(), dtype);
}

void GradientReducer::MakeZeros(const Parameter& parameter, InFlightGradient& gradient) {
  const at::ScalarType dtype = WireDtype(parameter.tensor.scalar_type());
  if (parameter.sparse_dims > 0) {
    gradient.sparse.emplace(parameter.tensor, parameter.sparse_dims, dtype);
  } else {
    // Without `requires_grad` they never become its gradient, which could stay in the slot.
    gradient.wire =
        TakeSlot(IndexOf(parameter), parameter.tensor, parameter.tensor.requires_grad());
    if (gradient.wire.defined()) {
      gradient.wire.zero_();
    } else {
      gradient.wire = at::zeros(parameter.tensor.sizes(), parameter.tensor.options().dtype(dtype));
    }
  }
}

Status GradientReducer::CheckSparse(const Parameter& parameter) const {
  const auto refuse = [&parameter](const std::string& why) {
    return Status::InvalidArgument(GradientOf(parameter.name) + " is sparse, " + why +
                                   " Create the layer with sparse=False, or pass "
                                   "sparse_as_dense=True to DistributedOptimizer.");
  };
  const ReduceOp op = options_.reduction.op;
  if (parameter.tensor.grad().layout() != at::kSparse) return refuse("but it is not a COO tensor.");
  if (!parameter.group.empty()) {
    return refuse("but its group is reduced as one dense buffer; leave it out of `groups`.");
  }
  if (op != ReduceOp::kAverage && op != ReduceOp::kSum) {
    return refuse("and op " + std::string(ReduceOpName(op)) +
                  " cannot reduce it: missing rows count as zero only for Average and Sum.");
  }
  return Status::Ok();
}

Status GradientReducer::MakeSparse(Parameter& parameter, InFlightGradient& gradient) const {
  MYDIST_RETURN_IF_ERROR(CheckSparse(parameter));
  gradient.gradient = parameter.tensor.grad();
  gradient.version = VersionOf(gradient.gradient);
  gradient.sparse.emplace(gradient.gradient, WireDtype(gradient.gradient.scalar_type()));
  parameter.sparse_dims = gradient.gradient.sparse_dim();
  return CheckReadable(gradient.sparse->values(), GradientOf(parameter.name)).status();
}

Status GradientReducer::MakeWire(Parameter& parameter, InFlightGradient& gradient) {
  const at::NoGradGuard no_grad;
  if (!parameter.tensor.grad().defined()) {
    MakeZeros(parameter, gradient);
    return Status::Ok();
  }
  if (parameter.tensor.grad().layout() != at::kStrided) {
    if (!sparse_as_dense_) return MakeSparse(parameter, gradient);
    parameter.tensor.mutable_grad() = parameter.tensor.grad().to_dense();
  }
  parameter.sparse_dims = 0;
  gradient.gradient = parameter.tensor.grad();
  const std::string what = GradientOf(parameter.name);
  MYDIST_RETURN_IF_ERROR(CheckReadable(gradient.gradient, what).status());
  MYDIST_RETURN_IF_ERROR(CheckWritable(gradient.gradient, what));
  MakeDenseWire(IndexOf(parameter), gradient);
  return Status::Ok();
}

// Where the gradient lies decides about copies: none in its slot; else one to the slot, where it
// stays if it may. On a GPU, a gradient without other references also stays where it is, if the
// engine casts it or it does not use its slot.
void GradientReducer::MakeDenseWire(size_t index, InFlightGradient& gradient) {
  at::Tensor& tensor = gradient.gradient;
  const at::ScalarType dtype = WireDtype(tensor.scalar_type());
  at::Tensor slot;
  bool is_shared = false;
  if (!slots_.Holds(index, tensor)) {
    // A user may place gradients in a larger piece of memory, and then controls their sharing.
    const bool is_autograds = gradient.is_fresh || HasMemoryOfItsOwn(tensor);
    is_shared = is_autograds && tensor.storage().use_count() > 1;
    slot = TakeSlot(index, tensor, tensor.scalar_type() == dtype && CanMove(tensor, false));
  }
  gradient.is_wide = !slot.defined() && IsCastByEngine(tensor) && CanMove(tensor, false);
  if (slot.defined()) {
    CopyToSlot(slot, tensor);
    NoteUse(tensor);  // It may go with MoveTo.
    copied_bytes_ += slot.nbytes();
    // The same object in another place: all references to it see the result.
    const bool moves = tensor.scalar_type() == dtype && CanMove(tensor, gradient.is_fresh);
    if (moves) MoveTo(tensor, slot);
    gradient.wire = moves ? tensor : std::move(slot);
  } else {
    gradient.wire = gradient.is_wide ? tensor : Dense(tensor.to(dtype));
    // Autograd may give one memory to two gradients: what is reduced there would be reduced twice.
    if (is_shared && gradient.wire.is_same(tensor)) gradient.wire = tensor.clone();
    if (!gradient.wire.is_same(tensor)) copied_bytes_ += gradient.wire.nbytes();
  }
  gradient.version = std::nullopt;
  // Writing the result to one of two that share memory changes the other.
  const bool shares_version = is_shared && !gradient.wire.is_same(tensor);
  if (HasMemoryOfItsOwn(tensor) && !shares_version) gradient.version = VersionOf(tensor);
  gradient.data = tensor.const_data_ptr();
}

// Where the copies of MakeWire have just been put.
StreamHandle GradientReducer::StreamOf(const Parameter& parameter) {
  const at::Device device = parameter.tensor.device();
  return device.is_cuda() ? CurrentStream(device) : StreamHandle{};
}

Status GradientReducer::CheckUntouched(const Parameter& parameter, const InFlightGradient& held) {
  const at::Tensor& now = parameter.tensor.grad();
  const bool is_same = held.gradient.defined() ? now.is_same(held.gradient) : !now.defined();
  if (!is_same) return GradientReplaced(parameter.name);
  if (!held.gradient.defined()) return Status::Ok();
  if (!held.sparse && now.const_data_ptr() != held.data) return GradientReplaced(parameter.name);
  const bool is_changed = held.version && VersionOf(now) != *held.version;
  return is_changed ? GradientChanged(parameter.name) : Status::Ok();
}

// The gradient's own memory stays where it is; a sparse one is another tensor afterwards.
void GradientReducer::Install(Parameter& parameter, const InFlightGradient& done, bool alone) {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  const at::ScalarType dtype = parameter.tensor.scalar_type();
  if (!done.gradient.defined() && (alone || !parameter.tensor.requires_grad())) return;
  if (done.sparse) {
    gradient = done.sparse->Sum(dtype, sparse_factor_);
  } else if (!done.gradient.defined()) {
    gradient = done.wire.to(dtype);
  } else if (!done.wire.is_same(done.gradient)) {
    done.gradient.copy_(done.wire);
    copied_bytes_ += done.wire.nbytes();
  }
}

}  // namespace mydist
