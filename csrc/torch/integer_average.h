// IntegerAverage: averages of integers, summed in numbers that no number of ranks overflows and
// truncated toward zero (world/collective_op.h: Carrier). Factors are applied here, as the engine
// applies those of other reductions: in float64, truncated, saturated at the ends of the dtype.
// Used on a Python thread; on a GPU everything goes to its current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "controller/messages/request.h"

namespace mydist {

struct IntegerAverage {
  // Nothing for any other request.
  static std::optional<IntegerAverage> Of(const Request& request);

  at::ScalarType dtype = at::kLong;  // Of the elements.
  double prescale = 1.0;
  double postscale = 1.0;

  // What the engine sums for a dense tensor, in new memory; a trailing dimension for more numbers.
  at::Tensor Carry(const at::Tensor& tensor) const;

  // Writes the average to `target`, which may have any strides. Uses up `sum`. `divisor`: the
  // number of ranks in the process set, joined ones included.
  void Finish(const at::Tensor& sum, int64_t divisor, const at::Tensor& target) const;
  // The same in a new tensor.
  at::Tensor Finish(const at::Tensor& sum, int64_t divisor) const;
};

}  // namespace mydist
