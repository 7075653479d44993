#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

// w ← w − lr·g, as torch.optim.SGD without momentum.
class Sgd final : public UpdateRule {
 public:
  explicit Sgd(float lr) : lr_(lr) {}

  int64_t StateFloats(int64_t) const override { return 0; }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float>,
             const PushInfo&) const override {
    float* const w = parameters.data();
    const float* const g = gradient.data();
    for (size_t i = 0; i < parameters.size(); ++i) w[i] -= lr_ * g[i];
  }

 private:
  const float lr_;
};

}  // namespace

RuleRow SgdRow() {
  return {
      "sgd",
      {{.name = "lr",
        .is_required = true,
        .is_allowed = [](double lr) { return lr >= 0; },
        .allowed = "a number of at least 0"}},
      [](const RuleOptions& options, int) { return std::make_unique<Sgd>(options.Float("lr")); }};
}

}  // namespace mydist::ps
