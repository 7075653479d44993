#include "base/dtype.h"

#include <algorithm>
#include <array>

namespace mydist {

namespace {

struct Row {
  std::string_view name;
  int64_t size_bytes;
};

constexpr std::array<Row, kDataTypeCount> kRows = {{
    {"uint8", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"bool", 1},
    {"complex64", 8},
    {"complex128", 16},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
}};

}  // namespace

int64_t SizeOf(DataType dtype) { return kRows[static_cast<size_t>(dtype)].size_bytes; }

std::string_view DataTypeName(DataType dtype) { return kRows[static_cast<size_t>(dtype)].name; }

std::optional<DataType> DataTypeFromWire(uint8_t number) {
  if (number >= kDataTypeCount) return std::nullopt;
  return static_cast<DataType>(number);
}

bool IsFloatingPoint(DataType dtype) {
  return dtype >= DataType::kFloat16 && dtype <= DataType::kFloat64;
}
bool IsComplex(DataType dtype) {
  return dtype == DataType::kComplex64 || dtype == DataType::kComplex128;
}
bool IsInteger(DataType dtype) { return dtype <= DataType::kInt64; }
bool IsFloat8(DataType dtype) {
  return dtype == DataType::kFloat8E4m3 || dtype == DataType::kFloat8E5m2;
}

std::optional<int64_t> Shape::ElementCount() const {
  constexpr int64_t kLimit = int64_t{1} << 62;
  int64_t count = 1;
  bool is_empty = false;
  for (const int64_t dim : dims_) {
    if (dim < 0) return std::nullopt;
    is_empty = is_empty || dim == 0;
    // A zero counts as one here: the limit must not depend on where the zero is, and the size of
    // a row must stay in range even when there are no rows.
    if (dim != 0 && count > kLimit / dim) return std::nullopt;
    count *= std::max<int64_t>(dim, 1);
  }
  return is_empty ? 0 : count;
}

int64_t Shape::RowElementCount() const {
  int64_t count = 1;
  for (size_t i = 1; i < dims_.size(); ++i) count *= dims_[i];
  return count;
}

Shape Shape::WithFirstDim(int64_t first_dim) const {
  std::vector<int64_t> dims = dims_;
  if (dims.empty()) dims.push_back(first_dim);
  dims[0] = first_dim;
  return Shape(std::move(dims));
}

bool Shape::SameRowAs(const Shape& other) const {
  return dims_.size() == other.dims_.size() &&
         (dims_.empty() || std::equal(dims_.begin() + 1, dims_.end(), other.dims_.begin() + 1));
}

std::string Shape::ToString() const {
  std::string text = "[";
  for (size_t i = 0; i < dims_.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims_[i]);
  }
  return text + "]";
}

}  // namespace mydist
