#include "kernels/loop.h"
#include "ps/rules/descend.h"
#include "ps/rules/options.h"
#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

struct SgdFactors {
  float lr, momentum, carried, undamped, decay;
  bool nesterov;
};

MYDIST_LOOP_PART float Decayed(float g, float w, float decay) {
  return decay != 0 ? g + decay * w : g;
}

MYDIST_LOOP void SgdDecayLoop(float* __restrict w, const float* __restrict g, size_t count,
                              SgdFactors by) {
  for (size_t i = 0; i < count; ++i) w[i] -= by.lr * Decayed(g[i], w[i], by.decay);
}

MYDIST_LOOP void SgdMomentumLoop(float* __restrict w, const float* __restrict g,
                                 float* __restrict velocity, size_t count, SgdFactors by) {
  for (size_t i = 0; i < count; ++i) {
    const float d = Decayed(g[i], w[i], by.decay);
    const float v = by.carried * velocity[i] + by.undamped * d;
    velocity[i] = v;
    w[i] -= by.lr * (by.nesterov ? d + by.momentum * v : v);
  }
}

// As torch.optim.SGD: d = g + weight_decay·w, v ← momentum·v + (1 − dampening)·d, w ← w − lr·v, or
// w ← w − lr·(d + momentum·v) with nesterov. The first v is d, undamped. State: v with a momentum.
class Sgd final : public UpdateRule {
 public:
  explicit Sgd(const RuleOptions& options)
      : by_{.lr = options.Float("lr"),
            .momentum = options.Float("momentum"),
            .carried = options.Float("momentum"),
            .undamped = static_cast<float>(1 - options.At("dampening")),
            .decay = options.Float("weight_decay"),
            .nesterov = options.Is("nesterov")} {}

  int64_t StateFloats(int64_t count) const override { return by_.momentum != 0 ? count : 0; }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float> state,
             const PushInfo& push) const override {
    if (by_.momentum != 0) {
      SgdFactors by = by_;
      if (push.updates == 0) {
        by.carried = -0.0f;  // −0 + d has all bits of d.
        by.undamped = 1;
      }
      SgdMomentumLoop(parameters.data(), gradient.data(), state.data(), parameters.size(), by);
    } else if (by_.decay != 0) {
      SgdDecayLoop(parameters.data(), gradient.data(), parameters.size(), by_);
    } else {
      Descend(parameters, gradient, by_.lr);
    }
  }

 private:
  const SgdFactors by_;
};

std::string SgdConflict(const RuleOptions& options) {
  if (!options.Is("nesterov") || (options.At("momentum") > 0 && options.At("dampening") == 0)) {
    return "";
  }
  return "nesterov needs a momentum above 0 and a dampening of 0";
}

}  // namespace

RuleRow SgdRow() {
  return {"sgd",
          {Required(AtLeastZero("lr")), AtLeastZero("momentum"), ZeroToOne("dampening"),
           AtLeastZero("weight_decay"), Switch("nesterov")},
          [](const RuleOptions& options, int) { return std::make_unique<Sgd>(options); },
          SgdConflict};
}

}  // namespace mydist::ps
