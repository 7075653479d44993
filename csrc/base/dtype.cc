#include "base/dtype.h"

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

}  // namespace mydist
