#include "kernels/loop.h"
#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

MYDIST_LOOP void AddLoop(float* __restrict w, const float* __restrict g, size_t count) {
  for (size_t i = 0; i < count; ++i) w[i] += g[i];
}

// w ← w + g. What is pushed is added: changes, counts, gradients to be summed.
class Add final : public UpdateRule {
 public:
  int64_t StateFloats(int64_t) const override { return 0; }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float>,
             const PushInfo&) const override {
    AddLoop(parameters.data(), gradient.data(), parameters.size());
  }
};

}  // namespace

RuleRow AddRow() {
  return {"add", {}, [](const RuleOptions&, int) { return std::make_unique<Add>(); }};
}

}  // namespace mydist::ps
