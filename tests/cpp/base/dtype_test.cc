#include "base/dtype.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace mydist {
namespace {

struct Expected {
  DataType dtype;
  uint8_t number;  // On the wire: must never change.
  std::string name;
  int64_t size_bytes;
  bool is_floating_point;
  bool is_complex;
  bool is_integer;
};

const std::vector<Expected>& Table() {
  static const std::vector<Expected> kTable = {
      {DataType::kUint8, 0, "uint8", 1, false, false, true},
      {DataType::kInt8, 1, "int8", 1, false, false, true},
      {DataType::kInt16, 2, "int16", 2, false, false, true},
      {DataType::kInt32, 3, "int32", 4, false, false, true},
      {DataType::kInt64, 4, "int64", 8, false, false, true},
      {DataType::kFloat16, 5, "float16", 2, true, false, false},
      {DataType::kBfloat16, 6, "bfloat16", 2, true, false, false},
      {DataType::kFloat32, 7, "float32", 4, true, false, false},
      {DataType::kFloat64, 8, "float64", 8, true, false, false},
      {DataType::kBool, 9, "bool", 1, false, false, false},
      {DataType::kComplex64, 10, "complex64", 8, false, true, false},
      {DataType::kComplex128, 11, "complex128", 16, false, true, false},
      {DataType::kFloat8E4m3, 12, "float8_e4m3fn", 1, false, false, false},
      {DataType::kFloat8E5m2, 13, "float8_e5m2", 1, false, false, false},
  };
  return kTable;
}

TEST(DataTypeTest, TableIsAsDocumented) {
  ASSERT_EQ(Table().size(), static_cast<size_t>(kDataTypeCount));
  for (const Expected& row : Table()) {
    EXPECT_EQ(static_cast<uint8_t>(row.dtype), row.number) << row.name;
    EXPECT_EQ(DataTypeFromWire(row.number), row.dtype) << row.name;
    EXPECT_EQ(DataTypeName(row.dtype), row.name);
    EXPECT_EQ(SizeOf(row.dtype), row.size_bytes) << row.name;
    EXPECT_EQ(IsFloatingPoint(row.dtype), row.is_floating_point) << row.name;
    EXPECT_EQ(IsComplex(row.dtype), row.is_complex) << row.name;
    EXPECT_EQ(IsInteger(row.dtype), row.is_integer) << row.name;
    EXPECT_EQ(IsFloat8(row.dtype), row.name.starts_with("float8")) << row.name;
  }
}

TEST(DataTypeTest, UnknownNumbersAreRefused) {
  for (int number = kDataTypeCount; number < 256; ++number) {
    EXPECT_EQ(DataTypeFromWire(static_cast<uint8_t>(number)), std::nullopt) << number;
  }
}

}  // namespace
}  // namespace mydist
