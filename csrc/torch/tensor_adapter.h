// at::Tensor → what the engine takes: contiguous memory of a dtype that travels.
// Used on the calling Python thread, before anything is enqueued; every refusal names the tensor,
// what it is and what to call instead. `what` is e.g. "allreduce of 'x'".
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "torch/tensor_memory.h"

namespace mydist {

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

}  // namespace mydist
