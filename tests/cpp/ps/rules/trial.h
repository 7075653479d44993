// Trial: a rule with its parameters and state, as a piece of a table keeps them. It counts pushes
// and pulls as a piece does, and checks that the rule writes nothing around its memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ps/rules/update_rule.h"

namespace mydist::ps {

inline constexpr int kTrialWorkers = 3;

// The turns of workers: an upper-case letter is a push of that worker, a lower-case one a pull. A
// star is the mean over all workers of a Sync table.
inline constexpr std::string_view kPrompt = "aAbBcCaAcCbBaA";
inline constexpr std::string_view kDelayed = "ABcCaACbcBBaAACcbABC";

inline std::vector<float> RandomNumbers(uint32_t seed, size_t count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = draw(random);
  return numbers;
}

class Trial {
 public:
  Trial(const RuleSpec& spec, std::span<const float> start)
      : count_(start.size()),
        rule_(MakeRule(spec, kTrialWorkers).value()),
        state_floats_(rule_->StateFloats(static_cast<int64_t>(count_))),
        parameters_(count_ + 2, kGuard),
        state_(static_cast<size_t>(state_floats_) + 2, 0) {
    state_.front() = state_.back() = kGuard;
    std::copy(start.begin(), start.end(), parameters_.begin() + 1);
    rule_->Begin(parameters(), state());
  }
  ~Trial() {
    EXPECT_TRUE(parameters_.front() == kGuard && parameters_.back() == kGuard);
    EXPECT_TRUE(state_.front() == kGuard && state_.back() == kGuard);
  }

  void Push(std::span<const float> gradient, const PushInfo& push) {
    rule_->Apply(parameters(), gradient, state(), push);
    ++updates_;
  }
  void Pull(int worker) {
    rule_->OnPull(parameters(), state(), worker);
    updates_read_[worker] = updates_;
  }
  // `gradient` gives the one of the push with this number.
  template <typename Gradient>
  void Run(std::string_view script, Gradient gradient) {
    for (const char turn : script) {
      if (turn == '*') {
        Push(gradient(updates_), {0, updates_, updates_, true});
        continue;
      }
      const bool pulls = turn >= 'a';
      const int worker = turn - (pulls ? 'a' : 'A');
      if (pulls) {
        Pull(worker);
      } else {
        Push(gradient(updates_), Info(worker));
      }
    }
  }

  PushInfo Info(int worker) const { return {worker, updates_, updates_read_[worker]}; }
  int64_t state_floats() const { return state_floats_; }
  std::span<float> parameters() { return std::span(parameters_).subspan(1, count_); }

 private:
  static constexpr float kGuard = 12345;

  std::span<float> state() { return std::span(state_).subspan(1, state_.size() - 2); }

  const size_t count_;
  const std::unique_ptr<UpdateRule> rule_;
  const int64_t state_floats_;
  std::vector<float> parameters_;  // From an address that is no multiple of a vector's size.
  std::vector<float> state_;
  int64_t updates_ = 0;
  int64_t updates_read_[kTrialWorkers] = {};
};

}  // namespace mydist::ps
