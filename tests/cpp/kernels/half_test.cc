#include "kernels/element.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "conformance/reduction_reference.h"
#include "kernels/simd/simd_path.h"

namespace mydist {
namespace {

constexpr int kPatternCount = 1 << 16;

std::vector<uint16_t> AllPatterns() {
  std::vector<uint16_t> patterns(kPatternCount);
  for (int i = 0; i < kPatternCount; ++i)
    patterns[static_cast<size_t>(i)] = static_cast<uint16_t>(i);
  return patterns;
}

// Every float16 and bfloat16, their neighbours in float32, the middles between them and the
// middles' neighbours, and a walk over all of float32.
std::vector<float> InterestingFloats() {
  std::vector<float> floats;
  const auto add_around = [&](float value) {
    const float infinity = std::numeric_limits<float>::infinity();
    floats.push_back(value);
    floats.push_back(std::nextafter(value, infinity));
    floats.push_back(std::nextafter(value, -infinity));
  };
  for (int i = 0; i < kPatternCount; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const double half = testing::HalfValue(bits);
    add_around(static_cast<float>(half));
    const double next = testing::HalfValue(static_cast<uint16_t>(bits + 1));
    if (std::isfinite(half) && std::isfinite(next)) {
      add_around(static_cast<float>((half + next) / 2));
    }
    add_around(std::bit_cast<float>(static_cast<uint32_t>(i) << 16));
    add_around(std::bit_cast<float>(static_cast<uint32_t>(i) << 16 | 0x8000u));
  }
  for (float edge : {65504.0f, 65519.996f, 65520.0f, 65536.0f, 0x1p-25f, 0x1p-24f, 0x1p-14f}) {
    add_around(edge);
    add_around(-edge);
  }
  constexpr uint32_t kStride = 4099;  // Prime.
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += kStride) {
    floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return floats;
}

TEST(Half, WideningIsExactForAllPatterns) {
  for (int i = 0; i < kPatternCount; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const double expected = testing::HalfValue(bits);
    const float got = HalfToFloat(bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << i;
    } else {
      EXPECT_EQ(static_cast<double>(got), expected) << i;
      EXPECT_EQ(std::signbit(got), (i & 0x8000) != 0) << i;
    }
  }
}

TEST(Half, NarrowingIsTheInverseOfWidening) {
  for (int i = 0; i < kPatternCount; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const bool is_nan = std::isnan(testing::HalfValue(bits));
    EXPECT_EQ(FloatToHalf(HalfToFloat(bits)), is_nan ? bits | 0x200 : bits) << i;
    const bool is_bfloat_nan = std::isnan(Bfloat16ToFloat(bits));
    EXPECT_EQ(FloatToBfloat16(Bfloat16ToFloat(bits)), is_bfloat_nan ? bits | 0x40 : bits) << i;
  }
}

// |value - got| is at most half the distance to the next number, and an odd result is never at
// exactly half.
template <typename ToDouble>
void ExpectNearest(double value, uint16_t got, ToDouble to_double) {
  const auto magnitude = static_cast<uint16_t>(got & 0x7fff);
  const double middle_up = (to_double(magnitude) + to_double(magnitude + 1)) / 2;
  const double middle_down =
      magnitude == 0 ? 0 : (to_double(magnitude) + to_double(magnitude - 1)) / 2;
  const double distance = std::abs(value);
  const bool odd = (got & 1) != 0;
  EXPECT_TRUE(distance < middle_up || (distance == middle_up && !odd)) << value << " " << got;
  EXPECT_TRUE(distance > middle_down || (distance == middle_down && !odd)) << value << " " << got;
  EXPECT_EQ(std::signbit(value), (got & 0x8000) != 0) << value;
}

// The finite numbers go on beyond the largest one for the purpose of rounding.
double HalfOrBeyond(int magnitude) {
  return magnitude == 0x7c00 ? 65536.0 : testing::HalfValue(static_cast<uint16_t>(magnitude));
}

double BfloatOrBeyond(int magnitude) {
  if (magnitude == 0x7f80) return 0x1p128;
  return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(magnitude) << 16));
}

TEST(Half, NarrowingRoundsToNearestEven) {
  for (const float value : InterestingFloats()) {
    const uint16_t half = FloatToHalf(value);
    const uint16_t bfloat = FloatToBfloat16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(testing::HalfValue(half)));
      EXPECT_TRUE(std::isnan(Bfloat16ToFloat(bfloat)));
      continue;
    }
    if (std::abs(value) >= 65520.0f) {
      EXPECT_EQ(half & 0x7fff, 0x7c00) << value;
    } else {
      ExpectNearest(value, half, HalfOrBeyond);
    }
    if ((bfloat & 0x7fff) == 0x7f80) {
      EXPECT_GE(std::abs(static_cast<double>(value)), 0x1.ffp127) << value;
    } else {
      ExpectNearest(value, bfloat, BfloatOrBeyond);
    }
  }
}

class HalfKernels : public ::testing::TestWithParam<simd::SimdPath> {
 protected:
  void SetUp() override {
    if (!simd::CpuHas(GetParam())) GTEST_SKIP() << "not on this CPU";
  }
  const simd::Kernels& kernels() { return simd::KernelsOf(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(All, HalfKernels, ::testing::ValuesIn(simd::kAllSimdPaths),
                         [](const auto& instance) {
                           return std::string(simd::SimdPathName(instance.param));
                         });

TEST_P(HalfKernels, EqualTheScalarFunctions) {
  const std::vector<uint16_t> patterns = AllPatterns();
  std::vector<float> halves(kPatternCount);
  std::vector<float> bfloats(kPatternCount);
  kernels().widen_half(patterns.data(), halves.data(), kPatternCount);
  kernels().widen_bfloat16(patterns.data(), bfloats.data(), kPatternCount);
  for (size_t i = 0; i < patterns.size(); ++i) {
    const auto half = std::bit_cast<uint32_t>(halves[i]);
    const auto bfloat = std::bit_cast<uint32_t>(bfloats[i]);
    EXPECT_EQ(half, std::bit_cast<uint32_t>(HalfToFloat(patterns[i]))) << i;
    EXPECT_EQ(bfloat, std::bit_cast<uint32_t>(Bfloat16ToFloat(patterns[i]))) << i;
  }
  const std::vector<float> floats = InterestingFloats();
  const auto count = static_cast<int64_t>(floats.size());
  std::vector<uint16_t> narrowed(floats.size());
  kernels().narrow_half(floats.data(), narrowed.data(), count);
  size_t wrong = 0;
  for (size_t i = 0; i < floats.size(); ++i) wrong += narrowed[i] != FloatToHalf(floats[i]);
  EXPECT_EQ(wrong, 0u) << "float16";
  kernels().narrow_bfloat16(floats.data(), narrowed.data(), count);
  for (size_t i = 0; i < floats.size(); ++i) wrong += narrowed[i] != FloatToBfloat16(floats[i]);
  EXPECT_EQ(wrong, 0u) << "bfloat16";
}

TEST_P(HalfKernels, WriteExactlyTheirBlock) {
  for (int64_t count = 0; count < 40; ++count) {
    std::vector<uint16_t> patterns(64, 0x3c00);
    std::vector<float> wide(64, -7.0f);
    kernels().widen_half(patterns.data(), wide.data(), count);
    for (int64_t i = 0; i < 64; ++i)
      EXPECT_EQ(wide[static_cast<size_t>(i)], i < count ? 1.0f : -7.0f);
    std::vector<uint16_t> narrow(64, 0xffff);
    kernels().narrow_half(wide.data(), narrow.data(), count);
    for (int64_t i = 0; i < 64; ++i)
      EXPECT_EQ(narrow[static_cast<size_t>(i)], i < count ? 0x3c00 : 0xffff);
  }
}

}  // namespace
}  // namespace mydist
