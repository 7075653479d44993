#include "torch/tensor_memory.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>

namespace mydist {
namespace {

// Indexed by DataType.
constexpr std::array<at::ScalarType, kDataTypeCount> kScalarTypes = {
    at::kByte,         at::kChar,          at::kShort,         at::kInt,        at::kLong,
    at::kHalf,         at::kBFloat16,      at::kFloat,         at::kDouble,     at::kBool,
    at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

}  // namespace

std::optional<DataType> ToDataType(at::ScalarType dtype) {
  const auto found = std::find(kScalarTypes.begin(), kScalarTypes.end(), dtype);
  if (found == kScalarTypes.end()) return std::nullopt;
  return static_cast<DataType>(found - kScalarTypes.begin());
}

at::ScalarType ToScalarType(DataType dtype) { return kScalarTypes[static_cast<size_t>(dtype)]; }

std::string DtypeName(at::ScalarType dtype) { return std::string(c10::getDtypeNames(dtype).first); }

at::Tensor Dense(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (tensor._is_zerotensor()) return tensor.new_zeros(tensor.sizes());
  return tensor.resolve_conj().resolve_neg().contiguous();
}

}  // namespace mydist
