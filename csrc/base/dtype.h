// DataType: the element types that travel; the numbers are part of the wire format.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

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

}  // namespace mydist
