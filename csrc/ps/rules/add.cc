#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

// w ← w + g. What is pushed is added: changes, counts, gradients to be summed.
class Add final : public UpdateRule {
 public:
  int64_t StateFloats(int64_t) const override { return 0; }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float>,
             const PushInfo&) const override {
    float* const w = parameters.data();
    const float* const g = gradient.data();
    for (size_t i = 0; i < parameters.size(); ++i) w[i] += g[i];
  }
};

}  // namespace

RuleRow AddRow() {
  return {"add", {}, [](const RuleOptions&, int) { return std::make_unique<Add>(); }};
}

}  // namespace mydist::ps
