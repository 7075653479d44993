// GradientsInFlight: what all gradient reducers of the process have enqueued and not finished.
// Two reducers must not reduce the same memory at once, nor use one name for two gradients; both
// happen with two optimizers over one model. Guarded by the GIL; never destroyed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/status.h"
#include "world/process_set.h"

namespace mydist {

class GradientsInFlight {
 public:
  static GradientsInFlight& Instance();

  // kInvalidArgument when the gradient of `parameter`, or another one of this name, is in flight.
  Status Check(const at::Tensor& parameter, const std::string& name,
               ProcessSetId process_set) const;
  void Add(const at::Tensor& parameter, const std::string& name, ProcessSetId process_set);
  void Remove(const at::Tensor& parameter);

 private:
  using Key = std::pair<ProcessSetId, std::string>;
  GradientsInFlight() = default;

  std::unordered_map<const at::TensorImpl*, Key> parameters_;
  std::set<Key> names_;
};

// Error texts of the gradient reducer for calls at the wrong time. Pure texts, all kInvalidArgument
// but the hint, which keeps its code.

// "gradient of 'layer.weight'"
std::string GradientOf(const std::string& name);
Status TooManyBackwards(const std::string& name, int64_t passes);
Status GradientReplaced(const std::string& name);
// Another thread has taken the gradients from the one that waits for them.
Status LostWhileWaiting();
// A mismatch that may come from a gradient being sparse on some ranks only.
Status WithSparseHint(const Status& mismatch);
Status GradientChanged(const std::string& name);

}  // namespace mydist
