#include "base/status.h"
#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

// The rule of a table without one: its values are pulled only.
class NoRule final : public UpdateRule {
 public:
  bool TakesGradients() const override { return false; }
  int64_t StateFloats(int64_t) const override { return 0; }
  void Apply(std::span<float>, std::span<const float>, std::span<float>,
             const PushInfo&) const override {
    MYDIST_CHECK(false);
  }
};

}  // namespace

RuleRow NoRuleRow() {
  return {kNoRule, {}, [](const RuleOptions&, int) { return std::make_unique<NoRule>(); }};
}

}  // namespace mydist::ps
