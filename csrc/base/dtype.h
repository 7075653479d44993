// DataType: the element types that travel; the numbers are part of the wire format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"

namespace mydist {

enum class DataType : uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kBfloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kComplex64 = 10,
  kComplex128 = 11,
  kFloat8E4m3 = 12,  // Without infinities: torch's float8_e4m3fn.
  kFloat8E5m2 = 13,
};
inline constexpr int kDataTypeCount = 14;

// Bytes of one element.
MYDIST_EXPORT int64_t SizeOf(DataType dtype);
// The name torch users know, e.g. "bfloat16".
MYDIST_EXPORT std::string_view DataTypeName(DataType dtype);
// The type of a number read from the wire, if there is one.
MYDIST_EXPORT std::optional<DataType> DataTypeFromWire(uint8_t number);

MYDIST_EXPORT bool IsFloatingPoint(DataType dtype);  // float16 … float64
MYDIST_EXPORT bool IsComplex(DataType dtype);
MYDIST_EXPORT bool IsInteger(DataType dtype);  // uint8 … int64, not bool
// Of 8 bits: they travel, and nothing is computed with them.
MYDIST_EXPORT bool IsFloat8(DataType dtype);

// Shape: the dimensions of a dense tensor, in elements, row-major.

class MYDIST_EXPORT Shape {
 public:
  Shape() = default;  // 0-d: one element.
  explicit Shape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  const std::vector<int64_t>& dims() const { return dims_; }
  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t dim(int index) const { return dims_[static_cast<size_t>(index)]; }

  // Product of all dimensions; nothing when one is negative or the product of those that are not
  // zero exceeds 2^62.
  std::optional<int64_t> ElementCount() const;
  // Elements in one row: the product of all dimensions but the first. 1 for 0-d and 1-d.
  // Only for shapes whose ElementCount is known: a peer's shape must have passed that first.
  int64_t RowElementCount() const;
  // The same shape with another first dimension; a 0-d shape becomes 1-d.
  Shape WithFirstDim(int64_t first_dim) const;
  // Whether all dimensions but the first are equal, and so is the number of dimensions.
  bool SameRowAs(const Shape& other) const;

  std::string ToString() const;  // "[2, 3]"; "[]" for 0-d.
  bool operator==(const Shape&) const = default;

 private:
  std::vector<int64_t> dims_;
};

}  // namespace mydist
