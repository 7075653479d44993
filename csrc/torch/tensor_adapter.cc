#include "torch/tensor_adapter.h"

#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "controller/messages/wire.h"
#include "torch/gpu_order.h"

namespace mydist {
namespace {

Status WrongDtype(at::ScalarType dtype, const std::string& what) {
  return Status::TypeError(
      what + ": dtype " + DtypeName(dtype) +
      " is not supported. Supported: uint8, int8, int16, int32, int64, float16, bfloat16, float32, "
      "float64, bool, complex64, complex128; float8_e4m3fn and float8_e5m2 without reduction. "
      "Convert it first, e.g. tensor.to(torch.int32) or "
      "tensor.to(torch.bfloat16).");
}

Status CheckLayout(const at::Tensor& tensor, const std::string& what) {
  if (tensor.is_nested()) {
    return Status::InvalidArgument(what +
                                   ": it is a nested tensor, expected a dense one. Pass its "
                                   "values and offsets, or tensor.to_padded_tensor(0).");
  }
  if (tensor.layout() == at::kStrided) return Status::Ok();
  std::ostringstream layout;
  layout << tensor.layout();
  return Status::InvalidArgument(
      what + ": its layout is " + layout.str() +
      ", expected a dense tensor. Pass tensor.to_dense() (for gradients: "
      "DistributedOptimizer(sparse_as_dense=True)).");
}

Status CheckPlace(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.is_meta()) return CheckDevice(tensor.device(), what);
  return Status::InvalidArgument(what +
                                 ": it is on the meta device and has no data. Create it on "
                                 "the CPU, e.g. module.to_empty(device='cpu').");
}

// Under these keys the memory is not the tensor's value, or there is none.
bool IsIntercepted(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  return keys.has(c10::DispatchKey::Python) || keys.has(c10::DispatchKey::FuncTorchBatched) ||
         keys.has(c10::DispatchKey::FuncTorchGradWrapper) ||
         keys.has(c10::DispatchKey::Functionalize);
}

// Sufficient, and exact for whatever slicing, transposing and expanding make: going from the
// smallest stride up, each step jumps over all that the smaller dimensions span.
bool MayOverlapItself(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // Stride, size.
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) return false;
    if (tensor.size(i) > 1) dims.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(dims.begin(), dims.end());
  int64_t last_offset = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= last_offset) return true;
    last_offset += stride * (size - 1);
  }
  return false;
}

}  // namespace

Shape ShapeOf(const at::Tensor& tensor) { return Shape(tensor.sizes().vec()); }

Status CheckName(const std::string& name, const std::string& call) {
  if (name.empty()) {
    return Status::InvalidArgument(call +
                                   ": the name is empty, expected a name that all ranks use");
  }
  if (name.size() <= kMaxNameBytes) return Status::Ok();
  return Status::InvalidArgument(call + ": the name '" + name.substr(0, 40) + "…' has " +
                                 std::to_string(name.size()) + " bytes, expected at most " +
                                 std::to_string(kMaxNameBytes));
}

Result<DataType> CheckReadable(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.defined())
    return Status::TypeError(what + ": got an undefined tensor, expected a torch.Tensor");
  if (IsIntercepted(tensor)) {
    return Status::TypeError(what +
                             ": it is a tensor subclass or transform that intercepts "
                             "operations (such as FakeTensor, DTensor or inside vmap), expected a "
                             "plain torch.Tensor. Pass the local, plain tensor.");
  }
  if (tensor.is_quantized()) {
    return Status::TypeError(what + ": dtype " + DtypeName(tensor.scalar_type()) +
                             " is quantized and is not supported. Pass tensor.dequantize() or "
                             "tensor.int_repr().");
  }
  MYDIST_RETURN_IF_ERROR(CheckLayout(tensor, what));
  MYDIST_RETURN_IF_ERROR(CheckPlace(tensor, what));
  const std::optional<DataType> dtype = ToDataType(tensor.scalar_type());
  if (tensor.dim() > static_cast<int64_t>(kMaxDims)) {
    return Status::InvalidArgument(what + ": it has " + std::to_string(tensor.dim()) +
                                   " dimensions, expected at most " + std::to_string(kMaxDims) +
                                   ". Pass tensor.flatten().");
  }
  if (!dtype) return WrongDtype(tensor.scalar_type(), what);
  if (tensor.numel() > 0 && !tensor._is_zerotensor() && tensor.const_data_ptr() == nullptr) {
    return Status::InvalidArgument(what + ": its storage was resized to 0 or freed, expected " +
                                   std::to_string(tensor.numel()) +
                                   " elements. Pass a tensor that holds its data.");
  }
  return *dtype;
}

Status CheckWritable(const at::Tensor& tensor, const std::string& what) {
  if (!MayOverlapItself(tensor)) return Status::Ok();
  return Status::InvalidArgument(
      what +
      ": several of its elements share memory (as after expand()), "
      "so it cannot be written in place. Pass tensor.clone(), or use the "
      "form that returns a new tensor.");
}

}  // namespace mydist
