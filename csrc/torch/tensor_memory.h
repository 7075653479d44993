// How a tensor lies in memory: its element type as mydist knows it, and dense copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "base/dtype.h"

namespace mydist {

// The same element type on both sides; nothing for what does not travel (uint16, …).
std::optional<DataType> ToDataType(at::ScalarType dtype);
at::ScalarType ToScalarType(DataType dtype);
// As users write it, e.g. "float8_e4m3fn".
std::string DtypeName(at::ScalarType dtype);

// The tensor itself if its elements lie row-major and without a pending conjugation or negation,
// else a copy that does. Detached from autograd either way.
at::Tensor Dense(const at::Tensor& tensor);

}  // namespace mydist
