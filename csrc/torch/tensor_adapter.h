// at::Tensor → what the engine takes: contiguous memory of a dtype that travels.
// Used on the calling Python thread, before anything is enqueued; every refusal names the tensor,
// what it is and what to call instead. `what` is e.g. "allreduce of 'x'".
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/status.h"

namespace mydist {

// The same element type on both sides; nothing for what does not travel (uint16, …).
std::optional<DataType> ToDataType(at::ScalarType dtype);
at::ScalarType ToScalarType(DataType dtype);
// As users write it, e.g. "float8_e4m3fn".
std::string DtypeName(at::ScalarType dtype);

Shape ShapeOf(const at::Tensor& tensor);

// kInvalidArgument when the name is empty or longer than what travels. `call` is e.g. "allreduce".
Status CheckName(const std::string& name, const std::string& call);

// The dtype of a dense tensor that can be read. kInvalidArgument for sparse, nested and meta
// tensors, for what CheckDevice refuses, and for those without memory or with more than 64
// dimensions; kTypeError for subclasses that intercept operations, quantized tensors and dtypes
// that do not travel.
Result<DataType> CheckReadable(const at::Tensor& tensor, const std::string& what);

// kInvalidArgument when two elements of the tensor may share memory: nothing sensible can be
// written to it.
Status CheckWritable(const at::Tensor& tensor, const std::string& what);

// The tensor itself if its elements lie row-major and without a pending conjugation or negation,
// else a copy that does. Detached from autograd either way.
at::Tensor Dense(const at::Tensor& tensor);

}  // namespace mydist
