// GradientHook: what torch calls when the gradient of a parameter has been accumulated.
// Owned by the parameter, called by autograd with the GIL held. It holds the reducer weakly: the
// parameter owns the hook and the reducer owns the parameter, and the circle must not keep both
// alive.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "torch/gradients/gradient_reducer.h"

namespace mydist {

class __attribute__((visibility("hidden"))) GradientHook {
 public:
  GradientHook(std::weak_ptr<GradientReducer> reducer, size_t index)
      : reducer_(std::move(reducer)), index_(index) {}

  void operator()(const pybind11::handle& /*parameter*/) const {
    if (const auto reducer = reducer_.lock()) reducer->OnGradient(index_);
  }

 private:
  std::weak_ptr<GradientReducer> reducer_;
  size_t index_;
};

// torch's handle of a registered hook. Made, used and destroyed with the GIL held.
struct __attribute__((visibility("hidden"))) HookHandle {
  pybind11::object handle;
};

}  // namespace mydist
