#include <algorithm>
#include <cmath>

#include "kernels/loop.h"
#include "ps/rules/options.h"
#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

MYDIST_LOOP void AdagradLoop(float* __restrict w, const float* __restrict g, float* __restrict sum,
                             size_t count, float step, float decay, float eps) {
  for (size_t i = 0; i < count; ++i) {
    const float d = decay != 0 ? g[i] + decay * w[i] : g[i];
    const float s = sum[i] + d * d;
    sum[i] = s;
    w[i] -= step * d / (std::sqrt(s) + eps);
  }
}

// As torch.optim.Adagrad, Duchi, Hazan & Singer 2011: d = g + weight_decay·w, s ← s + d² and
// w ← w − lr / (1 + (t − 1)·lr_decay) · d / (√s + eps) in push t. State: s.
class Adagrad final : public UpdateRule {
 public:
  explicit Adagrad(const RuleOptions& options)
      : lr_(options.At("lr")),
        lr_decay_(options.At("lr_decay")),
        decay_(options.Float("weight_decay")),
        initial_(options.Float("initial_accumulator_value")),
        eps_(options.Float("eps")) {}

  int64_t StateFloats(int64_t count) const override { return count; }
  void Begin(std::span<const float>, std::span<float> state) const override {
    std::fill(state.begin(), state.end(), initial_);
  }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float> state,
             const PushInfo& push) const override {
    const double step = lr_ / (1 + static_cast<double>(push.updates) * lr_decay_);
    AdagradLoop(parameters.data(), gradient.data(), state.data(), parameters.size(),
                static_cast<float>(step), decay_, eps_);
  }

 private:
  const double lr_, lr_decay_;
  const float decay_, initial_, eps_;
};

}  // namespace

RuleRow AdagradRow() {
  return {"adagrad",
          {AtLeastZero("lr", 1e-2), AtLeastZero("lr_decay"), AtLeastZero("weight_decay"),
           AtLeastZero("initial_accumulator_value"), AtLeastZero("eps", 1e-10)},
          [](const RuleOptions& options, int) { return std::make_unique<Adagrad>(options); }};
}

}  // namespace mydist::ps
