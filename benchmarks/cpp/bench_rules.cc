// bench_rules: the time of each update rule for a push of 64 MiB of gradients on one core, alone
// and with the pull that follows it. Usage: bench_rules.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "ps/rules/update_rule.h"

namespace mydist::ps {
namespace {

constexpr size_t kElements = size_t{1} << 24;
constexpr size_t kPiece = size_t{1} << 18;
constexpr int kSamples = 7;  // That count; one more warms up.
constexpr int kWorkers = 2;

const RuleSpec kSpecs[] = {
    {"assign", {}},
    {"add", {}},
    {"sgd", {{"lr", 0.1}}},
    {"sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 1e-4}}},
    {"adam", {}},
    {"adam", {{"amsgrad", 1}}},
    {"adamw", {}},
    {"adagrad", {}},
    {"ftrl", {{"lr", 0.1}, {"l1", 0.01}, {"l2", 0.01}}},
    {"dc_asgd", {{"lr", 0.1}, {"lam", 0.04}}},
    {"dc_asgd", {{"lr", 0.1}, {"lam", 1}, {"adaptive", 1}}},
    {"ada_delay", {{"smoothness", 10}, {"c", 1}}},
    {"adaptive_revision", {{"lr", 0.1}}},
    {"elastic", {{"alpha", 0.1}}},
};

std::vector<float> Numbers(uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> draw(-scale, scale);
  std::vector<float> numbers(kElements);
  for (float& number : numbers) number = draw(random);
  return numbers;
}

double MedianMilliseconds(const std::function<void()>& work) {
  work();
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    samples.push_back(taken.count());
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

void Measure(const RuleSpec& spec, std::span<float> parameters, std::span<const float> gradient) {
  Result<std::unique_ptr<UpdateRule>> made = MakeRule(spec, kWorkers);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().message().c_str());
    std::exit(1);
  }
  const UpdateRule& rule = *made.value();
  std::vector<std::vector<float>> states;
  for (size_t i = 0; i < kElements; i += kPiece) {
    states.emplace_back(static_cast<size_t>(rule.StateFloats(kPiece)));
    rule.Begin(parameters.subspan(i, kPiece), states.back());
  }
  PushInfo push{.updates = 1};
  const auto pass = [&](bool pulls) {
    for (size_t i = 0; i < kElements; i += kPiece) {
      const std::span<float> state = states[i / kPiece];
      rule.Apply(parameters.subspan(i, kPiece), gradient.subspan(i, kPiece), state, push);
      if (pulls) rule.OnPull(parameters.subspan(i, kPiece), state, push.worker);
    }
    push.updates_read = push.updates++;  // Each push is late by one.
  };
  const double alone = MedianMilliseconds([&] { pass(false); });
  const double with_pull = MedianMilliseconds([&] { pass(true); });
  std::printf("%-48s %8.2f %8.2f\n", RuleText(spec).c_str(), alone, with_pull);
}

int Main() {
  std::vector<float> parameters = Numbers(1, 1);
  const std::vector<float> gradient = Numbers(2, 0.01f);
  std::printf("ms for 64 MiB, median of %d                           push    + pull\n", kSamples);
  for (const RuleSpec& spec : kSpecs) Measure(spec, parameters, gradient);
  return 0;
}

}  // namespace
}  // namespace mydist::ps

int main() { return mydist::ps::Main(); }
