// The rows of rules and the ranges of their options.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ps/rules/update_rule.h"

namespace mydist::ps {
namespace {

std::string RuleErrorOf(const RuleSpec& spec) {
  const auto made = MakeRule(spec, 2);
  if (made.ok()) return "";
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  return made.status().message();
}

// The rule with the options that it needs.
RuleSpec NeededOf(const RuleRow& row) {
  RuleSpec spec{row.name, {}};
  for (const RuleOption& option : row.options) {
    if (option.is_required) spec.options.emplace_back(option.name, 1);
  }
  return spec;
}

RuleSpec WithOption(RuleSpec spec, const std::string& name, double value) {
  std::erase_if(spec.options, [&](const auto& option) { return option.first == name; });
  spec.options.emplace_back(name, value);
  return spec;
}

TEST(RuleRows, StandInAlphabeticalOrder) {
  std::vector<std::string> names;
  for (const RuleRow& row : RuleRows()) names.push_back(row.name);
  EXPECT_EQ(names, (std::vector<std::string>{"ada_delay", "adagrad", "adam", "adamw",
                                             "adaptive_revision", "add", "assign", "dc_asgd",
                                             "elastic", "ftrl", "none", "sgd"}));
}

TEST(RuleRows, TakeTheirDefaultsAndNeedTheRest) {
  for (const RuleRow& row : RuleRows()) {
    const RuleSpec needed = NeededOf(row);
    EXPECT_EQ(RuleErrorOf(needed), "") << row.name;
    for (const RuleOption& option : row.options) {
      if (!option.is_required) {
        EXPECT_TRUE(option.is_allowed(option.default_value)) << row.name << " " << option.name;
        continue;
      }
      RuleSpec spec = needed;
      std::erase_if(spec.options, [&](const auto& one) { return one.first == option.name; });
      EXPECT_EQ(RuleErrorOf(spec),
                "rule '" + row.name + "' needs " + option.name + ", " + option.allowed);
    }
  }
}

TEST(RuleOptions, HaveToBeFloat32) {
  for (const RuleRow& row : RuleRows()) {
    for (const RuleOption& option : row.options) {
      for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{
               {std::numeric_limits<double>::quiet_NaN(), "nan"},
               {std::numeric_limits<double>::infinity(), "inf"},
               {1e39, "1e+39"},
               {-1e-3, "-0.001"}}) {
        EXPECT_EQ(RuleErrorOf(WithOption(NeededOf(row), option.name, value)),
                  "rule '" + row.name + "': " + option.name + " is " + text + ", expected " +
                      option.allowed);
      }
    }
  }
}

TEST(RuleOptions, HaveRanges) {
  const std::string at_least = "a number of at least 0";
  const std::string above = "a number above 0";
  const std::string share = "a number from 0 to 1";
  const std::string below = "a number of at least 0 and below 1";
  // Rule, option, the allowed value next to one that is not, and the words for it.
  const std::tuple<std::string, std::string, double, double, std::string> ranges[] = {
      {"ada_delay", "smoothness", 1e-3, 0, above},
      {"ada_delay", "c", 0, -1, at_least},
      {"adagrad", "lr", 0, -1, at_least},
      {"adagrad", "lr_decay", 0, -1, at_least},
      {"adagrad", "weight_decay", 0, -1, at_least},
      {"adagrad", "initial_accumulator_value", 0, -1, at_least},
      {"adagrad", "eps", 0, -1, at_least},
      {"adam", "beta1", 0.9999, 1, below},
      {"adam", "beta2", 0, 1, below},
      {"adam", "amsgrad", 1, 0.5, "0 or 1"},
      {"adamw", "lr", 0, -1, at_least},
      {"adamw", "eps", 0, -1, at_least},
      {"adamw", "weight_decay", 2, -1, at_least},
      {"adaptive_revision", "lr", 0, -1, at_least},
      {"dc_asgd", "lr", 0, -1, at_least},
      {"dc_asgd", "lam", 16, -1, at_least},
      {"dc_asgd", "adaptive", 1, 2, "0 or 1"},
      {"dc_asgd", "momentum", 0.99, 1, below},
      {"elastic", "alpha", 1, 1.5, share},
      {"ftrl", "lr", 1e-3, 0, above},
      {"ftrl", "beta", 1e-3, 0, above},
      {"ftrl", "l1", 0, -1, at_least},
      {"ftrl", "l2", 0, -1, at_least},
      {"sgd", "lr", 0, -1, at_least},
      {"sgd", "momentum", 2, -1, at_least},
      {"sgd", "dampening", 1, 2, share},
      {"sgd", "weight_decay", 0, -1, at_least},
      {"sgd", "nesterov", 0, 2, "0 or 1"}};
  for (const auto& [rule, name, good, bad, words] : ranges) {
    const auto row = std::find_if(RuleRows().begin(), RuleRows().end(),
                                  [&rule = rule](const RuleRow& one) { return one.name == rule; });
    ASSERT_NE(row, RuleRows().end());
    EXPECT_EQ(RuleErrorOf(WithOption(NeededOf(*row), name, good)), "");
    const std::string error = RuleErrorOf(WithOption(NeededOf(*row), name, bad));
    EXPECT_TRUE(error.starts_with("rule '" + rule + "': " + name + " is ")) << error;
    EXPECT_TRUE(error.ends_with(", expected " + words)) << error;
  }
}

TEST(RuleOptions, OfNesterovNeedAnUndampedMomentum) {
  const std::string error = "rule 'sgd': nesterov needs a momentum above 0 and a dampening of 0";
  EXPECT_EQ(RuleErrorOf({"sgd", {{"lr", 1}, {"nesterov", 1}}}), error);
  EXPECT_EQ(
      RuleErrorOf({"sgd", {{"lr", 1}, {"momentum", 0.9}, {"dampening", 0.1}, {"nesterov", 1}}}),
      error);
  EXPECT_EQ(RuleErrorOf({"sgd", {{"lr", 1}, {"momentum", 0.9}, {"nesterov", 1}}}), "");
}

TEST(RuleOptions, OfOtherNamesAreRefused) {
  EXPECT_EQ(RuleErrorOf({"sdg", {}}),
            "there is no rule 'sdg': expected ada_delay, adagrad, adam, adamw, adaptive_revision, "
            "add, assign, dc_asgd, elastic, ftrl, none or sgd");
  EXPECT_EQ(RuleErrorOf({"elastic", {{"alpha", 0.1}, {"beta", 1}}}),
            "rule 'elastic' has no option 'beta': expected alpha");
  EXPECT_EQ(RuleErrorOf({"add", {{"lr", 1}}}), "rule 'add' has no option 'lr'");
}

}  // namespace
}  // namespace mydist::ps
