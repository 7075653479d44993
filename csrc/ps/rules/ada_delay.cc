#include <cmath>

#include "ps/rules/descend.h"
#include "ps/rules/options.h"
#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

// w ← w − g / (smoothness + c·√(t + τ)) in push t. τ counts the pushes by others between this
// worker's pull and its push: the longer the delay, the shorter the step. No state.
// AdaDelay, Sra et al. 2016; smoothness is the paper's L, the Lipschitz constant of the gradient.
class AdaDelay final : public UpdateRule {
 public:
  explicit AdaDelay(const RuleOptions& options)
      : smoothness_(options.At("smoothness")), c_(options.At("c")) {}

  int64_t StateFloats(int64_t) const override { return 0; }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float>,
             const PushInfo& push) const override {
    const int64_t delay = push.updates - push.updates_read;
    const auto time = static_cast<double>(push.updates + 1 + delay);
    Descend(parameters, gradient, static_cast<float>(1 / (smoothness_ + c_ * std::sqrt(time))));
  }

 private:
  const double smoothness_, c_;
};

}  // namespace

RuleRow AdaDelayRow() {
  return {"ada_delay",
          {Required(AboveZero("smoothness")), Required(AtLeastZero("c"))},
          [](const RuleOptions& options, int) { return std::make_unique<AdaDelay>(options); }};
}

}  // namespace mydist::ps
