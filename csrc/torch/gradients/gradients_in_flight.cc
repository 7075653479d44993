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

}  // namespace mydist
