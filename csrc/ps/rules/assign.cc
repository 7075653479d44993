#include <algorithm>

#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

// w ← g. What is pushed replaces what there was.
class Assign final : public UpdateRule {
 public:
  int64_t StateFloats(int64_t) const override { return 0; }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float>,
             const PushInfo&) const override {
    std::copy(gradient.begin(), gradient.end(), parameters.begin());
  }
};

}  // namespace

RuleRow AssignRow() {
  return {"assign", {}, [](const RuleOptions&, int) { return std::make_unique<Assign>(); }};
}

}  // namespace mydist::ps
