// GradientsInFlight: what all gradient reducers of the process have enqueued and not finished.
// Two reducers must not reduce the same memory at once, nor use one name for two gradients; both
// happen with two optimizers over one model. Guarded by the GIL; never destroyed.
#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace mydist
