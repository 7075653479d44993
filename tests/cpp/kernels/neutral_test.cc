#include "kernels/reduction.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "conformance/reduction_reference.h"

namespace mydist {
namespace {

using testing::Elements;
using testing::Get;
using testing::Put;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool IsNan(const Elements& elements, int64_t index) {
  const std::complex<double> value = testing::NumberAt(elements, index);
  return std::isnan(value.real()) || std::isnan(value.imag());
}

Elements ElementAt(const Elements& elements, int64_t index) {
  return testing::SliceOf(elements, index, 1);
}

Elements Reduced(const std::vector<const void*>& sources, int64_t count,
                 const Reduction& reduction) {
  Elements output(reduction.dtype, count, 0xEE);
  ReduceInRankOrder(sources, output.data(), count, reduction);
  return output;
}

// Numbers every type has trouble with; as bits for integers, as numbers for the others.
Elements AwkwardElements(DataType dtype) {
  const int64_t count = 64;
  Elements elements = testing::ContributionOf(dtype, 3, count);
  const auto bytes = static_cast<size_t>(SizeOf(dtype));
  std::fill_n(elements.bytes.begin(), bytes, uint8_t{0});
  if (IsInteger(dtype)) {
    std::fill_n(elements.bytes.begin() + SizeOf(dtype), bytes, uint8_t{0xff});
    std::fill_n(elements.bytes.begin() + 2 * SizeOf(dtype), bytes, uint8_t{0x7f});
    std::fill_n(elements.bytes.begin() + 3 * SizeOf(dtype), bytes, uint8_t{0});
    elements.bytes[4 * bytes - 1] = 0x80;  // The lowest of the signed types: little endian.
  } else if (IsFloatingPoint(dtype)) {
    // Sign only (-0.0); the largest, infinity, NaN: by the exponents' top ends.
    elements.bytes[2 * bytes - 1] = 0x80;
    constexpr std::array kSpecial = {0.0, -0.0, kInfinity, -kInfinity};
    for (size_t i = 0; i < kSpecial.size(); ++i) {
      const auto index = static_cast<int64_t>(i) + 2;
      const double value = kSpecial[i];
      const auto float32 = static_cast<float>(value);
      uint32_t bits;
      std::memcpy(&bits, &float32, sizeof(bits));
      const uint16_t half =
          static_cast<uint16_t>((bits >> 16 & 0x8000) | (std::isinf(value) ? 0x7c00 : 0));
      if (dtype == DataType::kFloat64) Put(elements, index, value);
      if (dtype == DataType::kFloat32) Put(elements, index, float32);
      if (dtype == DataType::kBfloat16) Put(elements, index, static_cast<uint16_t>(bits >> 16));
      if (dtype == DataType::kFloat16) Put(elements, index, half);
    }
  }
  return elements;
}

void ExpectNothingChanges(const Elements& x, const Reduction& reduction) {
  Elements neutral(reduction.dtype, x.count(), 0xEE);
  FillNeutral(neutral.data(), neutral.count(), reduction);
  const Elements alone = Reduced({x.data()}, x.count(), reduction);
  const std::vector<std::vector<const void*>> orders = {{x.data(), neutral.data()},
                                                        {neutral.data(), x.data()},
                                                        {neutral.data(), x.data(), neutral.data()}};
  for (const auto& sources : orders) {
    const Elements joined = Reduced(sources, x.count(), reduction);
    for (int64_t i = 0; i < x.count(); ++i) {
      const bool same = ElementAt(joined, i).bytes == ElementAt(alone, i).bytes;
      EXPECT_TRUE(same || (IsNan(alone, i) && IsNan(joined, i)))
          << ReduceOpName(reduction.op) << " of " << DataTypeName(reduction.dtype) << " prescale "
          << reduction.prescale << ": " << testing::NumberAt(alone, i) << " became "
          << testing::NumberAt(joined, i);
    }
  }
}

class Neutral : public ::testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, Neutral, ::testing::ValuesIn(testing::kAllDataTypes),
                         [](const auto& instance) {
                           return std::string(DataTypeName(instance.param));
                         });

TEST_P(Neutral, ChangesNothing) {
  for (const ReduceOp op : testing::kAllReduceOps) {
    if (!HasMeaning(op, GetParam())) continue;
    ExpectNothingChanges(AwkwardElements(GetParam()),
                         Reduction{.dtype = GetParam(), .op = op}.Resolved(1));
  }
}

std::vector<DataType> ScalableTypes() {
  std::vector<DataType> dtypes(std::begin(testing::kAllDataTypes),
                               std::end(testing::kAllDataTypes));
  std::erase(dtypes, DataType::kBool);
  return dtypes;
}

class ScaledNeutral : public ::testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, ScaledNeutral, ::testing::ValuesIn(ScalableTypes()),
                         [](const auto& instance) {
                           return std::string(DataTypeName(instance.param));
                         });

TEST_P(ScaledNeutral, ChangesNothing) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
    if (!HasMeaning(op, GetParam())) continue;
    for (const double prescale : {0.5, -0.5, 3.0, -3.0, 1e-3, -1e30, 0.1}) {
      ExpectNothingChanges(AwkwardElements(GetParam()),
                           {.dtype = GetParam(), .op = op, .prescale = prescale});
    }
  }
}

// Scaled by 0 everything is 0; an infinity in between would make NaN of it.
TEST(NeutralElements, ScaledByZeroStayFinite) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    const Reduction reduction{.dtype = DataType::kFloat32, .op = op, .prescale = 0.0};
    Elements neutral(DataType::kFloat32, 1);
    FillNeutral(neutral.data(), 1, reduction);
    const float x = 7;
    EXPECT_EQ(Get<float>(Reduced({&x, neutral.data()}, 1, reduction), 0), 0.0f);
  }
}

}  // namespace
}  // namespace mydist
