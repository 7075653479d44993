// How reductions are put to NCCL: what it does itself, and what is left for passes of ours.
#include "gpu/nccl_communicator.h"

#include <gtest/gtest.h>

#include <optional>
#include <string_view>
#include <utility>

#include "conformance/reduction_reference.h"
#include "fakes/fake_nccl_fold.h"

namespace mydist {
namespace {

using nccl::ElementType;
using nccl::ReductionKind;

constexpr DataType kFloats[] = {DataType::kFloat16, DataType::kBfloat16,  DataType::kFloat32,
                                DataType::kFloat64, DataType::kComplex64, DataType::kComplex128};

Reduction Average(DataType dtype, int size, double prescale = 1.0, double postscale = 1.0) {
  const Reduction average{
      .dtype = dtype, .op = ReduceOp::kAverage, .prescale = prescale, .postscale = postscale};
  return average.Resolved(size);
}

// What NCCL is told, and the passes of ours before and after it.
struct Plan {
  ReductionKind kind = ReductionKind::kSum;
  std::optional<double> multiplier;
  Factor before;
  Factor after;
};

void ExpectPlan(const Reduction& reduction, int size, const Plan& expected) {
  const NcclReduction plan = NcclReductionOf(reduction, size);
  const std::string_view type = DataTypeName(reduction.dtype);
  EXPECT_EQ(plan.kind, expected.kind) << type;
  EXPECT_EQ(plan.multiplier, expected.multiplier) << type;
  EXPECT_EQ(plan.before.multiplier, expected.before.multiplier) << type;
  EXPECT_EQ(plan.before.divisor, expected.before.divisor) << type;
  EXPECT_EQ(plan.after.multiplier, expected.after.multiplier) << type;
  EXPECT_EQ(plan.after.divisor, expected.after.divisor) << type;
}

TEST(NcclReduction, OfFloatsAveragesByItselfAndFoldsFactorsThatShrinkIntoTheSum) {
  for (const DataType dtype : kFloats) {
    ExpectPlan(Average(dtype, 6), 6, {.kind = ReductionKind::kAvg});
    ExpectPlan({.dtype = dtype}, 6, {});
    ExpectPlan(Average(dtype, 4, 0.5, 0.25), 4, {.multiplier = 0.5 * 0.25 / 4});
  }
  ExpectPlan(Average(DataType::kFloat32, 1), 1, {});
  // An average over more ranks than these: their part of a hierarchy.
  ExpectPlan(Average(DataType::kFloat32, 8), 4, {.multiplier = 0.125});
}

// A sum of float16 that was to be kept small must not overflow before it may grow.
TEST(NcclReduction, LetsGrowAfterTheSum) {
  ExpectPlan({.dtype = DataType::kFloat16, .prescale = 1.0 / 1024, .postscale = 1024.0}, 4,
             {.multiplier = 1.0 / 1024, .after = {.multiplier = 1024.0}});
}

TEST(NcclReduction, LeavesFactorsAloneThatTheTypeCannotHold) {
  ExpectPlan({.dtype = DataType::kFloat16, .prescale = 1e-6, .postscale = 0.5}, 2,
             {.before = {.multiplier = 1e-6}, .after = {.multiplier = 0.5}});
  for (const double prescale : {0.0, 1e39}) {
    EXPECT_FALSE(
        NcclReductionOf({.dtype = DataType::kFloat32, .prescale = prescale}, 2).multiplier);
  }
  ExpectPlan({.dtype = DataType::kFloat64, .prescale = 1e39}, 2, {.multiplier = 1e39});
}

TEST(NcclReduction, ScalesIntegersAndAroundEverythingButSumsInPassesOfOurs) {
  for (const DataType dtype :
       {DataType::kUint8, DataType::kInt8, DataType::kInt32, DataType::kInt64}) {
    ExpectPlan(Average(dtype, 3, 2.0, 5.0), 3,
               {.before = {.multiplier = 2.0}, .after = {.multiplier = 5.0, .divisor = 3}});
  }
  for (const auto& [op, kind] : {std::pair(ReduceOp::kMin, ReductionKind::kMin),
                                 std::pair(ReduceOp::kMax, ReductionKind::kMax),
                                 std::pair(ReduceOp::kProduct, ReductionKind::kProd)}) {
    ExpectPlan({.dtype = DataType::kFloat32, .op = op, .prescale = 0.5, .postscale = 0.25}, 2,
               {.kind = kind, .before = {.multiplier = 0.5}, .after = {.multiplier = 0.25}});
  }
}

TEST(NcclReduction, TakesBoolsAsBytesAndComplexNumbersAsPairs) {
  const auto kind_of = [](ReduceOp op) {
    return NcclReductionOf({.dtype = DataType::kBool, .op = op}, 2).kind;
  };
  EXPECT_EQ(kind_of(ReduceOp::kSum), ReductionKind::kMax);
  EXPECT_EQ(kind_of(ReduceOp::kMax), ReductionKind::kMax);
  EXPECT_EQ(kind_of(ReduceOp::kProduct), ReductionKind::kMin);
  EXPECT_EQ(kind_of(ReduceOp::kMin), ReductionKind::kMin);
  const NcclReduction complex = NcclReductionOf({.dtype = DataType::kComplex128}, 2);
  EXPECT_EQ(complex.type, ElementType::kFloat64);
  EXPECT_EQ(complex.numbers_per_element, 2);
  EXPECT_EQ(complex.element_bytes, 16);
}

TEST(NcclReduction, SaysWhatNcclCannotDo) {
  for (const DataType dtype : testing::kAllDataTypes) {
    EXPECT_FALSE(NcclReduces(ReduceOp::kAdasum, dtype));
    for (const ReduceOp op : testing::kAllReduceOps) {
      const bool only_sums = IsComplex(dtype) && op != ReduceOp::kSum && op != ReduceOp::kAverage;
      const bool expected = HasMeaning(op, dtype) && dtype != DataType::kInt16 && !only_sums;
      EXPECT_EQ(NcclReduces(op, dtype), expected) << ReduceOpName(op) << DataTypeName(dtype);
    }
  }
}

TEST(NcclReduction, WritesScalarsAsTheTypeDoes) {
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBfloat16,
                                 ElementType::kFloat32, ElementType::kFloat64}) {
    const auto exact = NcclScalarOf(-0.15625, type);
    EXPECT_EQ(testing::NumberAt(exact.data(), type), -0.15625);
    const auto rounded = NcclScalarOf(1.0 / 3, type);
    EXPECT_NEAR(testing::NumberAt(rounded.data(), type), 1.0 / 3, 0x1p-10);
  }
}

}  // namespace
}  // namespace mydist
