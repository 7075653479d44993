#include "torch/gradients/gradients_in_flight.h"

namespace mydist {

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

Status TooManyBackwards(const std::string& name, int64_t passes) {
  return Status::InvalidArgument(
      "Gradient of '" + name + "' was computed more than backward_passes_per_step (" +
      std::to_string(passes) +
      ") times since the last step. Call optimizer.step() or synchronize() before the next "
      "backward, raise backward_passes_per_step, or run the extra backward in "
      "optimizer.no_sync().");
}

Status GradientReplaced(const std::string& name) {
  return Status::InvalidArgument(
      "Gradient of '" + name +
      "' was replaced or cleared between backward and step, while it was being reduced. Call "
      "zero_grad() after step() (or before backward), or synchronize() first.");
}

Status LostWhileWaiting() {
  return Status::InvalidArgument(
      "another thread took the gradients while synchronize() waited for them: it synchronized the "
      "optimizer, wrapped it again or deleted it. Use an optimizer from one "
      "thread at a time.");
}

Status WithSparseHint(const Status& mismatch) {
  const std::string hint =
      "Is the gradient sparse on some ranks only? A rank without a gradient so far contributes "
      "dense zeros. Use the layer on every rank in the first step, or pass sparse_as_dense=True to "
      "DistributedOptimizer.";
  return Status(mismatch.code(), mismatch.message() + "\n" + hint)
      .About({.hint = hint})
      .About(mismatch.failure());
}

Status GradientChanged(const std::string& name) {
  return Status::InvalidArgument(
      "Gradient of '" + name +
      "' was changed in place between backward and step, while it was being reduced (zero_grad, "
      "clipping or GradScaler.unscale_). Call optimizer.synchronize() before changing gradients.");
}

}  // namespace mydist
