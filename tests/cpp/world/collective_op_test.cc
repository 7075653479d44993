#include "world/collective_op.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "world/process_set.h"

namespace mydist {
namespace {

TEST(OpKindTest, NamesAndNumbersAreAsDocumented) {
  const std::vector<std::string> names = {
      "allreduce", "allgather", "broadcast", "alltoall",  "reducescatter",   "barrier",
      "reduce",    "gather",    "scatter",   "send/recv", "add_process_set", "remove_process_set"};
  ASSERT_EQ(names.size(), static_cast<size_t>(kOpKindCount));
  for (size_t i = 0; i < names.size(); ++i) {
    const auto op = OpKindFromWire(static_cast<uint8_t>(i));
    ASSERT_TRUE(op.has_value());
    EXPECT_EQ(OpKindName(*op), names[i]);
    EXPECT_EQ(Reduces(*op), names[i].find("reduce") != std::string::npos);
  }
  EXPECT_EQ(OpKindFromWire(kOpKindCount), std::nullopt);
  EXPECT_EQ(OpKindFromWire(255), std::nullopt);
  EXPECT_EQ(OpKindFromWire(1), OpKind::kAllgather);
}

TEST(ReduceOpTest, NamesAndNumbersAreAsDocumented) {
  const std::vector<std::string> names = {"Average", "Sum", "Min", "Max", "Product", "Adasum"};
  ASSERT_EQ(names.size(), static_cast<size_t>(kReduceOpCount));
  for (size_t i = 0; i < names.size(); ++i) {
    const auto op = ReduceOpFromWire(static_cast<uint8_t>(i));
    ASSERT_TRUE(op.has_value());
    EXPECT_EQ(ReduceOpName(*op), names[i]);
  }
  EXPECT_EQ(ReduceOpFromWire(kReduceOpCount), std::nullopt);
  EXPECT_EQ(ReduceOpFromWire(255), std::nullopt);
}

TEST(ReduceOpTest, HasAMeaningWhereThereIsAnOrderOrADivision) {
  for (uint8_t number = 0; number < kDataTypeCount; ++number) {
    const DataType dtype = *DataTypeFromWire(number);
    if (IsFloat8(dtype)) {
      for (uint8_t op = 0; op < kReduceOpCount; ++op) {
        EXPECT_FALSE(HasMeaning(*ReduceOpFromWire(op), dtype)) << DataTypeName(dtype);
      }
      continue;
    }
    EXPECT_TRUE(HasMeaning(ReduceOp::kSum, dtype)) << DataTypeName(dtype);
    EXPECT_TRUE(HasMeaning(ReduceOp::kProduct, dtype)) << DataTypeName(dtype);
    EXPECT_EQ(HasMeaning(ReduceOp::kAverage, dtype), dtype != DataType::kBool);
    const bool is_ordered = dtype != DataType::kComplex64 && dtype != DataType::kComplex128;
    EXPECT_EQ(HasMeaning(ReduceOp::kMin, dtype), is_ordered) << DataTypeName(dtype);
    EXPECT_EQ(HasMeaning(ReduceOp::kMax, dtype), is_ordered) << DataTypeName(dtype);
    EXPECT_EQ(HasMeaning(ReduceOp::kAdasum, dtype), IsFloatingPoint(dtype)) << DataTypeName(dtype);
  }
}

TEST(ProcessSetTest, FindsItsMembers) {
  const ProcessSet set{3, {1, 4, 9}};
  EXPECT_EQ(set.size(), 3);
  EXPECT_EQ(set.IndexOf(1), 0);
  EXPECT_EQ(set.IndexOf(9), 2);
  for (const int rank : {-1, 0, 2, 5, 10}) EXPECT_EQ(set.IndexOf(rank), std::nullopt) << rank;
  EXPECT_EQ(ProcessSet{}.IndexOf(0), std::nullopt);
}

}  // namespace
}  // namespace mydist
