#include "kernels/reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "conformance/reduction_reference.h"
#include "conformance/status_checks.h"
#include "kernels/simd/simd_path.h"

namespace mydist {
namespace {

using testing::ContributionsOf;
using testing::Elements;
using testing::Get;
using testing::Put;

std::vector<const void*> PointersTo(const std::vector<Elements>& inputs) {
  std::vector<const void*> pointers;
  for (const Elements& input : inputs) pointers.push_back(input.data());
  return pointers;
}

Elements Reduced(const std::vector<Elements>& inputs, const Reduction& reduction) {
  Elements output(reduction.dtype, inputs[0].count(), 0xEE);
  ReduceInRankOrder(PointersTo(inputs), output.data(), output.count(),
                    reduction.Resolved(static_cast<int>(inputs.size())));
  return output;
}

// One row of numbers, one rank each.
template <typename T>
std::vector<Elements> OneElementEach(DataType dtype, std::initializer_list<T> values) {
  std::vector<Elements> inputs;
  for (const T value : values) Put(inputs.emplace_back(dtype, 1), 0, value);
  return inputs;
}

class ReduceKernels : public ::testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, ReduceKernels, ::testing::ValuesIn(testing::kAllDataTypes),
                         [](const auto& instance) {
                           return std::string(DataTypeName(instance.param));
                         });

TEST_P(ReduceKernels, AgreesWithTheReference) {
  for (const ReduceOp op : testing::kAllReduceOps) {
    if (!HasMeaning(op, GetParam())) continue;
    for (const int size : {1, 2, 3, 8}) {
      for (const int64_t count : {0, 1, 7, 1000, 20001}) {
        const auto inputs = ContributionsOf(GetParam(), size, count);
        const Reduction reduction{.dtype = GetParam(), .op = op};
        testing::ExpectReduced(Reduced(inputs, reduction), inputs, reduction);
      }
    }
  }
}

TEST_P(ReduceKernels, DoesNotDependOnPositionOrAlignment) {
  const Reduction reduction{.dtype = GetParam(), .op = ReduceOp::kSum};
  constexpr int64_t kCount = 6000;
  const auto inputs = ContributionsOf(GetParam(), 3, kCount);
  const Elements whole = Reduced(inputs, reduction);
  const int64_t element_bytes = SizeOf(GetParam());
  for (int64_t begin : {1, 3, 17, 4099}) {
    std::vector<const void*> sources;
    for (const Elements& input : inputs)
      sources.push_back(&input.bytes[static_cast<size_t>(begin * element_bytes)]);
    Elements part(GetParam(), kCount - begin);
    ReduceInRankOrder(sources, part.data(), part.count(), reduction);
    EXPECT_TRUE(std::equal(part.bytes.begin(), part.bytes.end(),
                           whole.bytes.begin() + begin * element_bytes));
  }
}

void CheckScaling(DataType dtype, ReduceOp op) {
  // No float16 leaves its range here: the reference does not overflow.
  for (const auto& [prescale, postscale] :
       {std::pair(0.5, 1.0), std::pair(1.0, 0.3), std::pair(0.7, -1.5), std::pair(3.0, 100.0)}) {
    const Reduction reduction{dtype, op, prescale, postscale};
    const auto inputs = ContributionsOf(dtype, 3, 5000);
    testing::ExpectReduced(Reduced(inputs, reduction), inputs, reduction);
  }
}

TEST(ReduceKernelValues, ScaleBeforeAndAfter) {
  for (const DataType dtype : testing::kAllDataTypes) {
    if (dtype == DataType::kBool) continue;  // Refused by Reduction::Validate.
    for (const ReduceOp op : testing::kAllReduceOps) {
      if (HasMeaning(op, dtype)) CheckScaling(dtype, op);
    }
  }
}

TEST(ReduceKernelValues, MinAndMaxPropagateNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const Reduction reduction{.dtype = DataType::kFloat64, .op = op};
    for (const auto& values :
         {std::array{nan, 1.0, 2.0}, std::array{1.0, nan, 2.0}, std::array{1.0, 2.0, nan}}) {
      const auto inputs = OneElementEach(DataType::kFloat64, {values[0], values[1], values[2]});
      EXPECT_TRUE(std::isnan(Get<double>(Reduced(inputs, reduction), 0)));
    }
    const Reduction half{.dtype = DataType::kFloat16, .op = op};
    const auto halves = OneElementEach<uint16_t>(DataType::kFloat16, {0x3c00, 0x7e00, 0x4000});
    EXPECT_TRUE(std::isnan(testing::HalfValue(Get<uint16_t>(Reduced(halves, half), 0))));
  }
}

TEST(ReduceKernelValues, MinAndMaxKnowInfinities) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto inputs = OneElementEach(DataType::kFloat32, {1.0f, -infinity, infinity});
  EXPECT_EQ(Get<float>(Reduced(inputs, {DataType::kFloat32, ReduceOp::kMin}), 0), -infinity);
  EXPECT_EQ(Get<float>(Reduced(inputs, {DataType::kFloat32, ReduceOp::kMax}), 0), infinity);
}

// 2048 + 1 is 2048 in float16: adding pairwise would lose all the ones.
TEST(ReduceKernelValues, HalfSumsRoundOnce) {
  const auto inputs = OneElementEach<uint16_t>(
      DataType::kFloat16, {0x6800, 0x3c00, 0x3c00, 0x3c00, 0x3c00});  // 2048, 1, 1, 1, 1
  const Elements sum = Reduced(inputs, {DataType::kFloat16, ReduceOp::kSum});
  EXPECT_EQ(testing::HalfValue(Get<uint16_t>(sum, 0)), 2052.0);
}

// 60000 + 60000 is beyond float16, their average is not.
TEST(ReduceKernelValues, HalfAveragesDoNotOverflowOnTheWay) {
  const auto inputs = OneElementEach<uint16_t>(DataType::kFloat16, {0x7b53, 0x7b53});
  const Elements average = Reduced(inputs, {DataType::kFloat16, ReduceOp::kAverage});
  EXPECT_EQ(Get<uint16_t>(average, 0), 0x7b53);
}

class NotedOverflows : public ::testing::TestWithParam<simd::SimdPath> {
 protected:
  void SetUp() override {
    if (!simd::CpuHas(GetParam())) GTEST_SKIP() << "this CPU lacks it";
    ASSERT_TRUE(simd::UseSimd(simd::SimdPathName(GetParam())).ok());
  }
  void TearDown() override { ASSERT_TRUE(simd::UseSimd("auto").ok()); }
};
INSTANTIATE_TEST_SUITE_P(Paths, NotedOverflows, ::testing::ValuesIn(simd::kAllSimdPaths),
                         [](const auto& instance) {
                           return std::string(simd::SimdPathName(instance.param));
                         });

int64_t OverflowsOf(const std::vector<Elements>& inputs, const Reduction& reduction) {
  const int64_t before = OverflowsOfThread();
  Reduced(inputs, reduction);
  return OverflowsOfThread() - before;
}

// Wherever the number lies.
TEST_P(NotedOverflows, HalfSumsOfFiniteNumbers) {
  constexpr uint16_t kBig = 0x7b53;  // 60000.
  for (const size_t size : {2, 3, 4, 5, 8}) {
    for (const int64_t count : {1, 7, 32, 300}) {
      std::vector<Elements> inputs(size, Elements(DataType::kFloat16, count));
      for (Elements& input : inputs) std::fill(input.bytes.begin(), input.bytes.end(), uint8_t{0});
      Put(inputs[0], count - 1, kBig);
      EXPECT_EQ(OverflowsOf(inputs, {DataType::kFloat16, ReduceOp::kSum}), 0);
      Put(inputs[1], count - 1, kBig);
      EXPECT_EQ(OverflowsOf(inputs, {DataType::kFloat16, ReduceOp::kSum}), 1);
      EXPECT_EQ(OverflowsOf(inputs, {DataType::kFloat16, ReduceOp::kAverage}), 0);
      EXPECT_EQ(OverflowsOf(inputs, {.dtype = DataType::kFloat16, .prescale = 0.5}), 0);
    }
  }
}

TEST_P(NotedOverflows, NotOfWhatWasInfiniteBefore) {
  for (const uint16_t special : {0x7c00, 0xfc00, 0x7e00}) {  // Infinities and NaN.
    const auto inputs = OneElementEach<uint16_t>(DataType::kFloat16, {special, 0x7b53});
    EXPECT_EQ(OverflowsOf(inputs, {DataType::kFloat16, ReduceOp::kSum}), 0) << special;
  }
  const auto numbers = OneElementEach<int8_t>(DataType::kInt8, {127, 127});
  EXPECT_EQ(OverflowsOf(numbers, {DataType::kInt8, ReduceOp::kSum}), 0);
}

TEST_P(NotedOverflows, OfWiderNumbers) {
  const auto floats = OneElementEach<float>(DataType::kFloat32, {-3e38F, -3e38F});
  EXPECT_EQ(OverflowsOf(floats, {DataType::kFloat32, ReduceOp::kSum}), 1);
  EXPECT_EQ(OverflowsOf(floats, {DataType::kFloat32, ReduceOp::kMax}), 0);
  const auto doubles = OneElementEach<double>(DataType::kFloat64, {1e200, 1e200});
  EXPECT_EQ(OverflowsOf(doubles, {DataType::kFloat64, ReduceOp::kSum}), 0);
  EXPECT_EQ(OverflowsOf(doubles, {DataType::kFloat64, ReduceOp::kProduct}), 1);
  const auto brains = OneElementEach<uint16_t>(DataType::kBfloat16, {0x7f7f, 0x7f7f});
  EXPECT_EQ(OverflowsOf(brains, {DataType::kBfloat16, ReduceOp::kSum}), 1);
}

TEST(ReduceKernelValues, IntegersWrapAround) {
  const auto inputs = OneElementEach<int8_t>(DataType::kInt8, {127, 1});
  EXPECT_EQ(Get<int8_t>(Reduced(inputs, {DataType::kInt8, ReduceOp::kSum}), 0), -128);
  const auto shorts = OneElementEach<int16_t>(DataType::kInt16, {-32768, -1});
  EXPECT_EQ(Get<int16_t>(Reduced(shorts, {DataType::kInt16, ReduceOp::kProduct}), 0), -32768);
  const int64_t highest = std::numeric_limits<int64_t>::max();
  const auto longs = OneElementEach<int64_t>(DataType::kInt64, {highest, highest});
  EXPECT_EQ(Get<int64_t>(Reduced(longs, {DataType::kInt64, ReduceOp::kSum}), 0), -2);
}

TEST(ReduceKernelValues, IntegerAveragesOfEqualNumbersAreThatNumber) {
  for (int size = 1; size <= 128; ++size) {
    std::vector<Elements> inputs(static_cast<size_t>(size), Elements(DataType::kInt32, 1));
    for (Elements& input : inputs) Put(input, 0, int32_t{-7});
    const Elements average = Reduced(inputs, {DataType::kInt32, ReduceOp::kAverage});
    EXPECT_EQ(Get<int32_t>(average, 0), -7) << size << " ranks";
  }
}

TEST(ReduceKernelValues, ScaledIntegersTruncateAndSaturate) {
  const auto scaled = [](int32_t value, double postscale) {
    const auto inputs = OneElementEach<int32_t>(DataType::kInt32, {value});
    const Reduction reduction{DataType::kInt32, ReduceOp::kSum, 1.0, postscale};
    return Get<int32_t>(Reduced(inputs, reduction), 0);
  };
  EXPECT_EQ(scaled(7, 0.5), 3);
  EXPECT_EQ(scaled(-7, 0.5), -3);
  EXPECT_EQ(scaled(1, 1e300), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(scaled(-1, 1e300), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(scaled(5, std::numeric_limits<double>::quiet_NaN()), 0);
  const auto inputs =
      OneElementEach<int64_t>(DataType::kInt64, {std::numeric_limits<int64_t>::max()});
  const Reduction twice{DataType::kInt64, ReduceOp::kSum, 1.0, 2.0};
  EXPECT_EQ(Get<int64_t>(Reduced(inputs, twice), 0), std::numeric_limits<int64_t>::max());
}

TEST(ReduceKernelValues, AnyNonZeroByteIsTrue) {
  const auto inputs = OneElementEach<uint8_t>(DataType::kBool, {2, 4});
  EXPECT_EQ(Get<uint8_t>(Reduced(inputs, {DataType::kBool, ReduceOp::kProduct}), 0), 1);
  EXPECT_EQ(Get<uint8_t>(Reduced(inputs, {DataType::kBool, ReduceOp::kSum}), 0), 1);
}

// A copy keeps what a computation would not: the payload of a NaN, a bool that is neither 0 nor 1.
TEST(ReduceKernelValues, OneSourceIsCopiedByteForByte) {
  for (const DataType dtype : testing::kAllDataTypes) {
    Elements input(dtype, 301);
    for (size_t i = 0; i < input.bytes.size(); ++i) {
      input.bytes[i] = static_cast<uint8_t>(testing::Scramble(i));
    }
    Elements first(dtype, 301);
    Elements second(dtype, 301);
    const void* source = input.data();
    const std::array<void*, 3> outputs = {first.data(), second.data(), input.data()};
    const std::vector<uint8_t> expected = input.bytes;
    ReduceInRankOrder({&source, 1}, outputs, 301, {.dtype = dtype});
    EXPECT_TRUE(first.bytes == expected) << DataTypeName(dtype);
    EXPECT_TRUE(second.bytes == expected) << DataTypeName(dtype);
    EXPECT_TRUE(input.bytes == expected) << DataTypeName(dtype);
  }
}

TEST(ReductionTest, AverageBecomesASumWithADivisor) {
  const Reduction average{.dtype = DataType::kFloat32, .op = ReduceOp::kAverage};
  EXPECT_EQ(average.Resolved(6).op, ReduceOp::kSum);
  EXPECT_EQ(average.Resolved(6).divisor, 6);
  const Reduction product{.dtype = DataType::kFloat32, .op = ReduceOp::kProduct};
  EXPECT_EQ(product.Resolved(6), product);
}

TEST(ReductionTest, RefusesWhatHasNoMeaning) {
  const Status order = Reduction{.dtype = DataType::kComplex64, .op = ReduceOp::kMin}.Validate();
  ExpectError(order, StatusCode::kInvalidArgument, {"Min has no meaning for dtype complex64"});
  const Status scale =
      Reduction{.dtype = DataType::kBool, .op = ReduceOp::kSum, .postscale = 0.5}.Validate();
  ExpectError(scale, StatusCode::kInvalidArgument, {"bool"});
  EXPECT_TRUE((Reduction{.dtype = DataType::kBool, .op = ReduceOp::kSum}.Validate().ok()));
}

}  // namespace
}  // namespace mydist
