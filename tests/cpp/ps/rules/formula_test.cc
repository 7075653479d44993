// Each rule follows its formula, for every length of a piece and delay of a worker.
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ps/rules/reference.h"
#include "ps/rules/trial.h"

namespace mydist::ps {
namespace {

struct Formula {
  RuleSpec spec;
  int state;  // Floats for each parameter, with kTrialWorkers workers.
  std::function<std::unique_ptr<Reference>(const RuleSpec& spec, double start)> reference;
};

void PrintTo(const Formula& formula, std::ostream* out) { *out << RuleText(formula.spec); }

template <typename T>
Formula FormulaOf(RuleSpec spec, int state) {
  return {std::move(spec), state,
          [](const RuleSpec& given, double start) { return std::make_unique<T>(given, start); }};
}

class RuleFormula : public ::testing::TestWithParam<Formula> {};

TEST_P(RuleFormula, HoldsForEveryLengthAndDelay) {
  for (const size_t count : {0, 1, 7, 1000}) {
    SCOPED_TRACE(count);
    const std::vector<float> start = RandomNumbers(1, count);
    Trial trial(GetParam().spec, start);
    EXPECT_EQ(trial.state_floats(), static_cast<int64_t>(count) * GetParam().state);
    std::vector<std::unique_ptr<Reference>> expected;
    for (const float w : start) expected.push_back(GetParam().reference(GetParam().spec, w));
    uint32_t seed = 2;
    for (const char turn : kDelayed) {
      const int worker = turn >= 'a' ? turn - 'a' : turn - 'A';
      if (turn >= 'a') {
        trial.Pull(worker);
        for (const auto& element : expected) element->Pull(worker);
        continue;
      }
      const std::vector<float> gradient = RandomNumbers(seed++, count);
      const PushInfo push = trial.Info(worker);
      trial.Push(gradient, push);
      for (size_t i = 0; i < count; ++i) {
        expected[i]->Push(gradient[i], push);
        const double w = expected[i]->w;
        ASSERT_NEAR(trial.parameters()[i], w, 3e-6 * (1 + std::abs(w)))
            << "element " << i << " after push " << push.updates + 1;
      }
    }
  }
}

// A table that is cut elsewhere has the same bits.
TEST_P(RuleFormula, GivesAnElementTheSameBitsAnywhere) {
  constexpr size_t kCount = 1000;
  const std::vector<float> start = RandomNumbers(1, kCount);
  std::vector<std::vector<float>> gradients;
  for (uint32_t push = 0; push < kDelayed.size(); ++push) {
    gradients.push_back(RandomNumbers(push + 2, kCount));
  }
  const auto run = [&](size_t begin, size_t count) {
    Trial trial(GetParam().spec, std::span(start).subspan(begin, count));
    trial.Run(kDelayed, [&](int64_t push) {
      return std::span<const float>(gradients[static_cast<size_t>(push)]).subspan(begin, count);
    });
    return std::vector<float>(trial.parameters().begin(), trial.parameters().end());
  };
  const std::vector<float> whole = run(0, kCount);
  for (const auto& [begin, count] : std::vector<std::pair<size_t, size_t>>{
           {0, 1}, {501, 1}, {999, 1}, {3, 45}, {955, 45}, {128, 300}}) {
    const std::vector<float> part = run(begin, count);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(part[i]), std::bit_cast<uint32_t>(whole[begin + i]))
          << "element " << begin + i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, RuleFormula,
    ::testing::Values(
        FormulaOf<AddReference>({"add", {}}, 0), FormulaOf<AssignReference>({"assign", {}}, 0),
        FormulaOf<ElasticReference>({"elastic", {{"alpha", 0.3}}}, 0),
        FormulaOf<SgdReference>({"sgd", {{"lr", 0.1}}}, 0),
        FormulaOf<SgdReference>({"sgd", {{"lr", 0.1}, {"weight_decay", 0.2}}}, 0),
        FormulaOf<SgdReference>({"sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"dampening", 0.3}}}, 1),
        FormulaOf<SgdReference>(
            {"sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.2}, {"nesterov", 1}}}, 1),
        FormulaOf<AdamReference<false>>({"adam", {}}, 2),
        FormulaOf<AdamReference<false>>(
            {"adam",
             {{"lr", 0.1}, {"beta1", 0.7}, {"beta2", 0.8}, {"eps", 0.1}, {"weight_decay", 0.2}}},
            2),
        FormulaOf<AdamReference<false>>({"adam", {{"lr", 0.1}, {"beta2", 0.5}, {"amsgrad", 1}}}, 3),
        FormulaOf<AdamReference<true>>({"adamw", {{"lr", 0.1}}}, 2),
        FormulaOf<AdamReference<true>>({"adamw",
                                        {{"lr", 0.1},
                                         {"beta1", 0},
                                         {"beta2", 0.5},
                                         {"eps", 0.1},
                                         {"weight_decay", 0.5},
                                         {"amsgrad", 1}}},
                                       3),
        FormulaOf<AdagradReference>({"adagrad", {}}, 1),
        FormulaOf<AdagradReference>({"adagrad",
                                     {{"lr", 0.1},
                                      {"lr_decay", 0.1},
                                      {"weight_decay", 0.2},
                                      {"initial_accumulator_value", 0.5},
                                      {"eps", 0.1}}},
                                    1),
        FormulaOf<FtrlReference>({"ftrl", {{"lr", 0.5}}}, 2),
        FormulaOf<FtrlReference>({"ftrl", {{"lr", 0.5}, {"beta", 0.1}, {"l1", 0.7}, {"l2", 0.2}}},
                                 2),
        FormulaOf<DcAsgdReference>({"dc_asgd", {{"lr", 0.1}, {"lam", 2}}}, kTrialWorkers),
        FormulaOf<DcAsgdReference>({"dc_asgd", {{"lr", 0.1}, {"lam", 2}, {"clip", 0}}},
                                   kTrialWorkers),
        FormulaOf<DcAsgdReference>({"dc_asgd", {{"lr", 0.1}, {"lam", 2}, {"clip", 0.25}}},
                                   kTrialWorkers),
        FormulaOf<DcAsgdReference>({"dc_asgd", {{"lr", 0.1}, {"lam", 2}, {"adaptive", 1}}},
                                   kTrialWorkers + 1),
        FormulaOf<DcAsgdReference>({"dc_asgd",
                                    {{"lr", 0.1}, {"lam", 2}, {"adaptive", 1}, {"momentum", 0}}},
                                   kTrialWorkers + 1),
        FormulaOf<AdaDelayReference>({"ada_delay", {{"smoothness", 2}, {"c", 3}}}, 0),
        FormulaOf<AdaptiveRevisionReference>({"adaptive_revision", {{"lr", 0.3}}},
                                             kTrialWorkers + 3)));

}  // namespace
}  // namespace mydist::ps
