// Dense memory for tensors of any layout, while an operation of a lane uses them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <exception>
#include <vector>

#include "base/status.h"
#include "lanes/group_lane.h"
#include "torch/tensor_memory.h"

namespace mydist {

// What torch throws becomes kInternal: a lane and its threads know no exceptions.
template <typename Call>
Status CaughtFrom(const Call& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    return Status::Internal(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Status::Internal(error.what());
  }
}

inline Status Nothing(const LaneSite& /*site*/) { return Status::Ok(); }

// InAndOut: one tensor that is read, written or both; a copy of it where it is not dense.
class InAndOut {
 public:
  explicit InAndOut(const at::Tensor& tensor) : tensor_(tensor.detach()), dense_(Dense(tensor)) {}

  const at::Tensor& dense() const { return dense_; }
  void* data() const { return dense_.data_ptr(); }
  int64_t count() const { return dense_.numel(); }
  int64_t bytes() const { return static_cast<int64_t>(dense_.nbytes()); }
  // The tensor has what was written.
  Status CopyBack() const {
    if (!dense_.is_same(tensor_) && dense_.data_ptr() != tensor_.data_ptr()) {
      tensor_.copy_(dense_);
    }
    return Status::Ok();
  }

 private:
  const at::Tensor tensor_;
  const at::Tensor dense_;
};

// Whether the tensors lie one after the other, without gaps.
inline bool LieInOrder(const std::vector<at::Tensor>& tensors) {
  const char* next = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) return false;
    if (!tensor.is_alias_of(tensors.front())) return false;
    const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
    if (next != nullptr && begin != next) return false;
    next = begin + tensor.nbytes();
  }
  return true;
}

// The elements of all tensors in one of one dimension; of no tensors, an undefined one.
inline at::Tensor Joined(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  if (LieInOrder(tensors)) {
    int64_t count = 0;
    for (const at::Tensor& tensor : tensors) count += tensor.numel();
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() > 0) return tensor.detach().as_strided({count}, {1});
    }
  }
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(Dense(tensor).reshape({-1}));
  return at::cat(flat);
}

// InOrder: tensors that are written, one after the other; a copy where they do not lie so.
class InOrder {
 public:
  explicit InOrder(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
    if (LieInOrder(tensors)) {
      for (const at::Tensor& tensor : tensors) {
        if (tensor.numel() == 0) continue;
        data_ = tensor.data_ptr();
        break;
      }
      return;
    }
    int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
    copy_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    data_ = copy_.data_ptr();
  }

  void* data() const { return data_; }
  Status CopyBack() const {
    if (!copy_.defined()) return Status::Ok();
    int64_t offset = 0;
    for (const at::Tensor& tensor : tensors_) {
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      if (bytes > 0) {
        const at::Tensor piece = copy_.narrow(0, offset, bytes).clone();
        tensor.detach().copy_(piece.view(tensor.scalar_type()).view(tensor.sizes()));
      }
      offset += bytes;
    }
    return Status::Ok();
  }

 private:
  const std::vector<at::Tensor> tensors_;
  at::Tensor copy_;
  void* data_ = nullptr;
};

// The tensor, row-major, as `count` pieces of equal size.
inline std::vector<at::Tensor> EqualPieces(const at::Tensor& tensor, int count, const char* call) {
  TORCH_CHECK_VALUE(tensor.numel() % count == 0, "mydist: ", call, " got a tensor of ",
                    tensor.numel(), " elements, which ", count, " ranks cannot divide equally");
  if (!tensor.is_contiguous() && tensor.size(0) % count == 0) {
    return tensor.detach().split(tensor.size(0) / count);
  }
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "mydist: ", call,
                    " got a tensor that is not contiguous, and whose first dimension ", count,
                    " ranks cannot divide equally; call .contiguous() on it");
  const at::Tensor flat = tensor.detach().view({-1});
  if (flat.numel() == 0) return std::vector<at::Tensor>(static_cast<size_t>(count), flat);
  return flat.split(flat.numel() / count);
}

}  // namespace mydist
