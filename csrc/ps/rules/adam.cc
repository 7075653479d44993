#include <algorithm>
#include <cmath>

#include "kernels/loop.h"
#include "ps/rules/options.h"
#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

// Of one push. `kept`: the part of w that stays before the step.
struct AdamFactors {
  float step, root, eps, fresh_mean, beta2, fresh_square, decay, kept;
};

template <bool kAmsgrad>
MYDIST_LOOP_PART void AdamElements(float* __restrict w, const float* __restrict g,
                                   float* __restrict mean, float* __restrict square,
                                   float* __restrict largest, size_t count, AdamFactors by) {
  for (size_t i = 0; i < count; ++i) {
    const float d = by.decay != 0 ? g[i] + by.decay * w[i] : g[i];
    const float m = mean[i] + by.fresh_mean * (d - mean[i]);
    const float v = by.beta2 * square[i] + by.fresh_square * (d * d);
    mean[i] = m;
    square[i] = v;
    float under = v;
    if constexpr (kAmsgrad) {
      under = std::max(largest[i], v);
      largest[i] = under;
    }
    w[i] = by.kept * w[i] - by.step * m / (std::sqrt(under) * by.root + by.eps);
  }
}

MYDIST_LOOP void AdamLoop(float* __restrict w, const float* __restrict g, float* __restrict mean,
                          float* __restrict square, size_t count, AdamFactors by) {
  AdamElements<false>(w, g, mean, square, nullptr, count, by);
}

MYDIST_LOOP void AmsgradLoop(float* __restrict w, const float* __restrict g, float* __restrict mean,
                             float* __restrict square, float* __restrict largest, size_t count,
                             AdamFactors by) {
  AdamElements<true>(w, g, mean, square, largest, count, by);
}

// With multiplications only: std::pow has other bits on other CPUs.
double Power(double base, int64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 != 0) power *= base;
  }
  return power;
}

// As torch.optim.Adam and AdamW; Kingma & Ba 2015, Loshchilov & Hutter 2019, in push t:
// d = g + weight_decay·w, m ← beta1·m + (1 − beta1)·d, v ← beta2·v + (1 − beta2)·d²,
// w ← w − lr·m / (1 − beta1ᵗ) / (√(v / (1 − beta2ᵗ)) + eps). With adamw d = g, and w first shrinks
// by lr·weight_decay·w. With amsgrad the largest v so far takes the place of v there.
// State: m, v and with amsgrad the largest v.
class Adam final : public UpdateRule {
 public:
  Adam(const RuleOptions& options, bool is_decoupled)
      : lr_(options.At("lr")),
        beta1_(options.At("beta1")),
        beta2_(options.At("beta2")),
        is_amsgrad_(options.Is("amsgrad")),
        by_{.eps = options.Float("eps"),
            .fresh_mean = static_cast<float>(1 - beta1_),
            .beta2 = options.Float("beta2"),
            .fresh_square = static_cast<float>(1 - beta2_),
            .decay = is_decoupled ? 0 : options.Float("weight_decay"),
            .kept = is_decoupled ? static_cast<float>(1 - lr_ * options.At("weight_decay")) : 1} {}

  int64_t StateFloats(int64_t count) const override { return (is_amsgrad_ ? 3 : 2) * count; }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float> state,
             const PushInfo& push) const override {
    AdamFactors by = by_;
    by.step = static_cast<float>(lr_ / (1 - Power(beta1_, push.updates + 1)));
    by.root = static_cast<float>(1 / std::sqrt(1 - Power(beta2_, push.updates + 1)));
    const size_t count = parameters.size();
    float* const mean = state.data();
    float* const square = mean + count;
    if (is_amsgrad_) {
      AmsgradLoop(parameters.data(), gradient.data(), mean, square, square + count, count, by);
    } else {
      AdamLoop(parameters.data(), gradient.data(), mean, square, count, by);
    }
  }

 private:
  const double lr_, beta1_, beta2_;
  const bool is_amsgrad_;
  const AdamFactors by_;
};

RuleRow Row(std::string name, double weight_decay, bool is_decoupled) {
  return {std::move(name),
          {AtLeastZero("lr", 1e-3), BelowOne("beta1", 0.9), BelowOne("beta2", 0.999),
           AtLeastZero("eps", 1e-8), AtLeastZero("weight_decay", weight_decay), Switch("amsgrad")},
          [is_decoupled](const RuleOptions& options, int) {
            return std::make_unique<Adam>(options, is_decoupled);
          }};
}

}  // namespace

RuleRow AdamRow() { return Row("adam", 0, false); }
RuleRow AdamWRow() { return Row("adamw", 1e-2, true); }

}  // namespace mydist::ps
