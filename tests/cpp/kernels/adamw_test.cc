// AdamW on every path this CPU has: the bits of a reference that rounds after each operation, and
// the numbers of the paper's formulas in double.
#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "conformance/reduction_reference.h"
#include "kernels/simd/simd_path.h"

namespace mydist {
namespace {

using ::mydist::testing::Scramble;
using simd::SimdPath;

constexpr AdamwSettings kSettings = {
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01};

struct State {
  std::vector<float> parameters;
  std::vector<float> first;
  std::vector<float> second;

  AdamwMemory At(size_t start, const std::vector<float>& gradients) {
    return {&parameters[start], &gradients[start], &first[start], &second[start]};
  }
  bool operator==(const State& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
    };
    return same(parameters, other.parameters) && same(first, other.first) &&
           same(second, other.second);
  }
};

// From -1 to 1, over many magnitudes.
float Number(uint64_t seed) {
  const uint64_t bits = Scramble(seed);
  const auto unit = static_cast<double>(bits >> 40) / (1 << 24) * 2 - 1;
  return static_cast<float>(std::ldexp(unit, -static_cast<int>(bits % 30)));
}

std::vector<float> Numbers(size_t count, uint64_t salt) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = Number(i ^ salt << 32);
  return numbers;
}

State StartOf(size_t count) {
  State state = {Numbers(count, 1), Numbers(count, 2), Numbers(count, 3)};
  for (float& value : state.second) value = std::fabs(value);
  return state;
}

// One operation on floats, rounded once: a double has more than twice the digits.
float Rounded(double value) { return static_cast<float>(value); }
double Wide(float value) { return static_cast<double>(value); }
float Times(float a, float b) { return Rounded(Wide(a) * Wide(b)); }
float Plus(float a, float b) { return Rounded(Wide(a) + Wide(b)); }
float Minus(float a, float b) { return Rounded(Wide(a) - Wide(b)); }
float Over(float a, float b) { return Rounded(Wide(a) / Wide(b)); }

void ReferenceStep(State& state, const std::vector<float>& gradients, const AdamwStep& step) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    const float gradient = gradients[i];
    float& first = state.first[i];
    float& second = state.second[i];
    const float change = Minus(gradient, first);
    first = step.first_weight < 0.5F
                ? Plus(first, Times(step.first_weight, change))
                : Minus(gradient, Times(change, Minus(1.0F, step.first_weight)));
    second = Plus(Times(second, step.second_decay),
                  Times(Times(step.second_weight, gradient), gradient));
    const float root = Rounded(std::sqrt(Wide(second)));
    const float divisor = Plus(Over(root, step.second_root), step.epsilon);
    state.parameters[i] =
        Plus(Times(state.parameters[i], step.decay), Over(Times(-step.step_size, first), divisor));
  }
}

class AdamwPaths : public ::testing::TestWithParam<SimdPath> {
 protected:
  void SetUp() override {
    if (!simd::CpuHas(GetParam())) GTEST_SKIP() << "this CPU lacks it";
    ASSERT_TRUE(simd::UseSimd(simd::SimdPathName(GetParam())).ok());
  }
  void TearDown() override { ASSERT_TRUE(simd::UseSimd("auto").ok()); }
};

INSTANTIATE_TEST_SUITE_P(Every, AdamwPaths, ::testing::ValuesIn(simd::kAllSimdPaths),
                         [](const auto& path) {
                           return std::string(simd::SimdPathName(path.param));
                         });

TEST_P(AdamwPaths, HasTheBitsOfTheReference) {
  for (const double beta1 : {0.9, 0.3}) {
    AdamwSettings settings = kSettings;
    settings.beta1 = beta1;
    for (const size_t count : {1, 3, 15, 16, 17, 31, 64, 1000, 4099}) {
      State expected = StartOf(count);
      State got = expected;
      for (int64_t number = 1; number <= 3; ++number) {
        const std::vector<float> gradients = Numbers(count, 10 + static_cast<uint64_t>(number));
        const AdamwStep step = AdamwStepAt(settings, number);
        ReferenceStep(expected, gradients, step);
        RunAdamw(got.At(0, gradients), static_cast<int64_t>(count), step);
      }
      EXPECT_TRUE(got == expected) << count << " elements, beta1 " << beta1;
    }
  }
}

TEST_P(AdamwPaths, CuttingChangesNoBitAndTouchesNothingElse) {
  constexpr size_t kCount = 301;
  const std::vector<float> gradients = Numbers(kCount, 20);
  const AdamwStep step = AdamwStepAt(kSettings, 5);
  State whole = StartOf(kCount);
  RunAdamw(whole.At(0, gradients), kCount, step);
  for (size_t cut = 1; cut < 70; ++cut) {
    State parts = StartOf(kCount);
    RunAdamw(parts.At(0, gradients), static_cast<int64_t>(cut), step);
    const State start = StartOf(kCount);
    EXPECT_EQ(std::memcmp(&parts.parameters[cut], &start.parameters[cut], 4 * (kCount - cut)), 0);
    EXPECT_EQ(std::memcmp(&parts.first[cut], &start.first[cut], 4 * (kCount - cut)), 0);
    EXPECT_EQ(std::memcmp(&parts.second[cut], &start.second[cut], 4 * (kCount - cut)), 0);
    RunAdamw(parts.At(cut, gradients), static_cast<int64_t>(kCount - cut), step);
    EXPECT_TRUE(parts == whole) << cut;
  }
}

TEST_P(AdamwPaths, FollowsThePaper) {
  constexpr size_t kCount = 100;
  constexpr int kSteps = 50;
  State state = {Numbers(kCount, 1), std::vector<float>(kCount), std::vector<float>(kCount)};
  std::vector<double> parameters(state.parameters.begin(), state.parameters.end());
  std::vector<double> first(kCount);
  std::vector<double> second(kCount);
  for (int number = 1; number <= kSteps; ++number) {
    const std::vector<float> gradients = Numbers(kCount, 30 + static_cast<uint64_t>(number));
    RunAdamw(state.At(0, gradients), kCount, AdamwStepAt(kSettings, number));
    for (size_t i = 0; i < kCount; ++i) {
      const double gradient = Wide(gradients[i]);
      first[i] = kSettings.beta1 * first[i] + (1 - kSettings.beta1) * gradient;
      second[i] = kSettings.beta2 * second[i] + (1 - kSettings.beta2) * gradient * gradient;
      const double mean = first[i] / (1 - std::pow(kSettings.beta1, number));
      const double square = second[i] / (1 - std::pow(kSettings.beta2, number));
      parameters[i] -= kSettings.lr * (mean / (std::sqrt(square) + kSettings.epsilon) +
                                       kSettings.weight_decay * parameters[i]);
    }
  }
  for (size_t i = 0; i < kCount; ++i) EXPECT_NEAR(Wide(state.parameters[i]), parameters[i], 2e-6);
}

TEST_P(AdamwPaths, NanAndInfinityStayWhatTheyAre) {
  State state = StartOf(40);
  std::vector<float> gradients(40, 1.0F);
  gradients[3] = NAN;
  gradients[38] = INFINITY;
  RunAdamw(state.At(0, gradients), 40, AdamwStepAt(kSettings, 1));
  for (size_t i = 0; i < 40; ++i) {
    const bool is_strange = i == 3 || i == 38;  // An infinite square makes inf ÷ inf.
    EXPECT_EQ(std::isnan(state.parameters[i]), is_strange) << i;
  }
}

}  // namespace
}  // namespace mydist
