// Rules that agree bit for bit, and figures of torch.optim.
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "ps/rules/trial.h"

namespace mydist::ps {
namespace {

// Zeros of both signs, numbers close to them, and numbers whose squares overflow.
constexpr float kExtremes[] = {0.0f,  -0.0f, 1e-42f, -1e-42f, std::numeric_limits<float>::min(),
                               1e25f, -1e25f};

std::vector<float> WithExtremes(uint32_t seed) {
  std::vector<float> numbers = RandomNumbers(seed, 200);
  for (size_t i = 0; i < 7 * 7; ++i) numbers[i] = kExtremes[seed % 2 == 0 ? i / 7 : i % 7];
  return numbers;
}

std::vector<uint32_t> BitsAfter(const RuleSpec& spec, std::string_view script) {
  Trial trial(spec, WithExtremes(1));
  trial.Run(script, [](int64_t push) { return WithExtremes(static_cast<uint32_t>(push) + 2); });
  std::vector<uint32_t> bits;
  for (const float w : trial.parameters()) bits.push_back(std::bit_cast<uint32_t>(w));
  return bits;
}

struct RulePair {
  RuleSpec one, other;
  std::string_view script;
};

void PrintTo(const RulePair& pair, std::ostream* out) {
  *out << RuleText(pair.one) << " and " << RuleText(pair.other) << " in " << pair.script;
}

class RuleIdentity : public ::testing::TestWithParam<RulePair> {};

TEST_P(RuleIdentity, HoldsForEveryBit) {
  EXPECT_EQ(BitsAfter(GetParam().one, GetParam().script),
            BitsAfter(GetParam().other, GetParam().script));
}

const RuleSpec kPlainSgd = {"sgd", {{"lr", 0.25}}};

INSTANTIATE_TEST_SUITE_P(
    All, RuleIdentity,
    ::testing::Values(
        RulePair{{"dc_asgd", {{"lr", 0.25}, {"lam", 0}}}, kPlainSgd, kDelayed},
        RulePair{{"dc_asgd", {{"lr", 0.25}, {"lam", 0}, {"adaptive", 1}}}, kPlainSgd, kDelayed},
        RulePair{{"dc_asgd", {{"lr", 0.25}, {"lam", 2}}}, kPlainSgd, kPrompt},
        RulePair{{"dc_asgd", {{"lr", 0.25}, {"lam", 2}, {"adaptive", 1}}}, kPlainSgd, kPrompt},
        RulePair{{"dc_asgd", {{"lr", 0.25}, {"lam", 2}}}, kPlainSgd, "****"},
        RulePair{{"dc_asgd", {{"lr", 0.25}, {"lam", 2}, {"adaptive", 1}}}, kPlainSgd, "****"},
        RulePair{{"ada_delay", {{"smoothness", 4}, {"c", 0}}}, kPlainSgd, kDelayed},
        RulePair{{"sgd", {{"lr", 0.25}, {"momentum", 0}, {"dampening", 0.5}}}, kPlainSgd, kDelayed},
        RulePair{{"sgd", {{"lr", 0.25}, {"momentum", 0.9}, {"dampening", 0.5}}}, kPlainSgd, "A"},
        RulePair{
            {"adam", {{"lr", 0.25}}}, {"adamw", {{"lr", 0.25}, {"weight_decay", 0}}}, kDelayed}));

TEST(RuleIdentity, OfMeansAndOfPushesWithoutDelay) {
  const RuleSpec spec = {"adaptive_revision", {{"lr", 0.25}}};
  EXPECT_EQ(BitsAfter(spec, "****"), BitsAfter(spec, "aAbBaAcC"));
}

// With a delay each of them is another rule.
TEST(RuleIdentity, EndsWithADelay) {
  EXPECT_NE(BitsAfter({"dc_asgd", {{"lr", 0.25}, {"lam", 2}}}, kDelayed),
            BitsAfter(kPlainSgd, kDelayed));
  EXPECT_NE(BitsAfter({"ada_delay", {{"smoothness", 2}, {"c", 2}}}, "ABC"),
            BitsAfter({"ada_delay", {{"smoothness", 2}, {"c", 2}}}, "AbBcC"));
}

struct TorchResult {
  RuleSpec spec;
  double result;
};

// One parameter in float64 that starts at 1 and gets the gradients 0.5, -1 and 0.25, by torch 2.13.
TEST(TorchOptimizers, ComeToTheSameNumbers) {
  const TorchResult results[] = {
      {{"sgd", {{"lr", 0.1}}}, 1.025},
      {{"sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"dampening", 0.2}, {"weight_decay", 0.01}}},
       0.991561647},
      {{"sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.01}, {"nesterov", 1}}},
       1.043668458},
      {{"adam", {{"lr", 0.1}, {"weight_decay", 0.1}}}, 0.924730574},
      {{"adam", {{"lr", 0.1}, {"beta1", 0.8}, {"beta2", 0.6}, {"amsgrad", 1}}}, 0.951623862},
      {{"adamw", {{"lr", 0.1}}}, 0.947445709},
      {{"adamw",
        {{"lr", 0.1},
         {"beta1", 0.8},
         {"beta2", 0.6},
         {"eps", 0.01},
         {"weight_decay", 0.2},
         {"amsgrad", 1}}},
       0.897264861},
      {{"adagrad", {{"lr", 0.1}}}, 0.967620930},
      {{"adagrad",
        {{"lr", 0.1},
         {"lr_decay", 0.5},
         {"weight_decay", 0.1},
         {"initial_accumulator_value", 0.3},
         {"eps", 0.01}}},
       0.962688221}};
  for (const TorchResult& torch : results) {
    Trial trial(torch.spec, std::vector<float>{1});
    for (const float g : {0.5f, -1.0f, 0.25f}) trial.Push(std::vector<float>{g}, trial.Info(0));
    EXPECT_NEAR(trial.parameters()[0], torch.result, 5e-7) << RuleText(torch.spec);
  }
}

// The corrections of the start have no effect then, and with betas of 0 the step is lr·sign(g).
TEST(Adam, TakesStepsOfItsRateAfterAMillionPushes) {
  const auto rule = MakeRule({"adam", {{"lr", 0.5}, {"beta1", 0}, {"beta2", 0}}}, 1).value();
  float w = 1;
  const float g = 3;
  float state[2] = {};
  rule->Apply({&w, 1}, {&g, 1}, state, {.updates = 1'000'000});
  EXPECT_NEAR(w, 0.5, 1e-6);
}

}  // namespace
}  // namespace mydist::ps
