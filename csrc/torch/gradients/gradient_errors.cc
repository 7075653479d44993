#include "torch/gradients/gradient_errors.h"

namespace mydist {

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
      "the gradients were taken away while synchronize() waited for them: another thread has "
      "synchronized the optimizer, wrapped it again or deleted it. Use an optimizer from one "
      "thread at a time.");
}

Status WithSparseHint(const Status& mismatch) {
  return {mismatch.code(),
          mismatch.message() +
              "\nIf the gradient is sparse on some ranks only: a rank that has not had one yet "
              "contributes dense zeros. Use the layer on every rank in the first step, or pass "
              "sparse_as_dense=True to DistributedOptimizer."};
}

Status GradientChanged(const std::string& name) {
  return Status::InvalidArgument(
      "Gradient of '" + name +
      "' was changed in place between backward and step, while it was being reduced (zero_grad, "
      "clipping or GradScaler.unscale_). Call optimizer.synchronize() before changing gradients.");
}

}  // namespace mydist
