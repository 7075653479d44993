// A piece is updated in blocks: what that must not change.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "ps/piece.h"

namespace mydist::ps {
namespace {

constexpr size_t kLarge = 40'001;  // Of several blocks; the last one is short.
constexpr int kWorkers = 2;

// The same values for the same seed.
std::vector<float> Wave(float seed) {
  std::vector<float> values(kLarge);
  for (size_t i = 0; i < kLarge; ++i) values[i] = std::sin(seed * static_cast<float>(i));
  return values;
}

// A piece, and its rule applied to all elements at once.
class BlockTest : public ::testing::TestWithParam<RuleSpec> {
 protected:
  void Open(Consistency consistency) {
    spec_ = {.name = "t",
             .elements = kLarge,
             .piece_elements = kLarge,
             .rule = GetParam(),
             .consistency = consistency,
             .ranks = {0, 1}};
    whole_ = MakeRule(spec_.rule, kWorkers).value();
    state_.resize(static_cast<size_t>(whole_->StateFloats(kLarge)));
    whole_->Begin(expected_, state_);
    piece_ = std::make_unique<DensePiece>(spec_, expected_);
  }
  // What it is answered with, once it is.
  void PushPull(int worker, std::vector<float>& answer) {
    const std::vector<float>& gradient = gradients_[static_cast<size_t>(worker)];
    std::vector<uint8_t> bytes(kLarge * sizeof(float));
    std::memcpy(bytes.data(), gradient.data(), bytes.size());
    piece_->Push(worker, Payload(std::move(bytes)), true, [&answer](const Answer& got) {
      answer.assign(got.parameters.begin(), got.parameters.end());
    });
  }

  std::vector<float> expected_ = Wave(1);
  const std::vector<std::vector<float>> gradients_ = {Wave(2), Wave(3)};
  TableSpec spec_;
  std::unique_ptr<UpdateRule> whole_;
  std::vector<float> state_;
  std::unique_ptr<DensePiece> piece_;
};

TEST_P(BlockTest, AsyncGivesTheBitsOfTheWhole) {
  Open(Consistency::kAsync);
  std::vector<int64_t> read(kWorkers);
  for (int64_t updates = 0; updates < 3 * kWorkers; ++updates) {
    const auto worker = static_cast<int>(updates % kWorkers);
    const auto index = static_cast<size_t>(worker);
    std::vector<float> answer;
    PushPull(worker, answer);
    whole_->Apply(expected_, gradients_[index], state_, {worker, updates, read[index]});
    whole_->OnPull(expected_, state_, worker);
    read[index] = updates + 1;
    ASSERT_EQ(answer, expected_);
  }
}

TEST_P(BlockTest, SyncGivesTheBitsOfTheWhole) {
  Open(Consistency::kSync);
  std::vector<float> mean(kLarge);
  for (size_t i = 0; i < kLarge; ++i) mean[i] = (gradients_[0][i] + gradients_[1][i]) / kWorkers;
  for (int64_t clock = 0; clock < 3; ++clock) {
    std::vector<std::vector<float>> answers(kWorkers);
    for (int worker = 0; worker < kWorkers; ++worker) {
      PushPull(worker, answers[static_cast<size_t>(worker)]);
    }
    whole_->Apply(expected_, mean, state_, {0, clock, clock, true});
    for (int worker = 0; worker < kWorkers; ++worker) whole_->OnPull(expected_, state_, worker);
    for (const std::vector<float>& answer : answers) ASSERT_EQ(answer, expected_);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, BlockTest,
                         ::testing::Values(RuleSpec{"adam", {{"lr", 0.1}, {"amsgrad", 1}}},
                                           RuleSpec{"dc_asgd",
                                                    {{"lr", 0.1}, {"lam", 1}, {"adaptive", 1}}},
                                           RuleSpec{"adaptive_revision", {{"lr", 0.1}}}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace mydist::ps
