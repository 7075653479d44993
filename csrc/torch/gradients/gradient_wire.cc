// How a gradient is sent, and how its result is stored.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>

#include "memory/shm/stream_copy.h"
#include "torch/gpu_order.h"
#include "torch/gradients/gradient_reducer.h"
#include "torch/gradients/gradients_in_flight.h"
#include "torch/tensor_adapter.h"

namespace mydist {
namespace {

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

}  // namespace

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
