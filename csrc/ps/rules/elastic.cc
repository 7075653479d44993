#include "kernels/loop.h"
#include "ps/rules/options.h"
#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

MYDIST_LOOP void ElasticLoop(float* __restrict w, const float* __restrict x, size_t count,
                             float alpha) {
  for (size_t i = 0; i < count; ++i) w[i] += alpha * (x[i] - w[i]);
}

// Elastic averaging, with or without momentum on the worker (AEASGD, EAMSGD), Zhang et al. 2015.
// The worker pushes its parameters x, and w is the center that ties the workers together:
// w ← w + alpha·(x − w).
class Elastic final : public UpdateRule {
 public:
  explicit Elastic(float alpha) : alpha_(alpha) {}

  int64_t StateFloats(int64_t) const override { return 0; }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float>,
             const PushInfo&) const override {
    ElasticLoop(parameters.data(), gradient.data(), parameters.size(), alpha_);
  }

 private:
  const float alpha_;
};

}  // namespace

RuleRow ElasticRow() {
  return {"elastic", {Required(ZeroToOne("alpha"))}, [](const RuleOptions& options, int) {
            return std::make_unique<Elastic>(options.Float("alpha"));
          }};
}

}  // namespace mydist::ps
