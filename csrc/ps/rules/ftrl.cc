#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/loop.h"
#include "ps/rules/options.h"
#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

struct FtrlFactors {
  float inverse_lr, beta, l1, l2;
};

MYDIST_LOOP void FtrlLoop(float* __restrict w, const float* __restrict g, float* __restrict sums,
                          float* __restrict squares, size_t count, FtrlFactors by) {
  for (size_t i = 0; i < count; ++i) {
    const float square = g[i] * g[i];
    const float n = squares[i] + square;
    const float root = std::sqrt(n);
    // √n − √(n − g²) without its cancellation; 0 where both are 0.
    const float growth =
        square / std::max(root + std::sqrt(squares[i]), std::numeric_limits<float>::min());
    const float z = sums[i] + (g[i] - growth * by.inverse_lr * w[i]);
    squares[i] = n;
    sums[i] = z;
    const float beyond = std::max(std::abs(z) - by.l1, 0.0f);
    w[i] = -std::copysign(beyond, z) / ((by.beta + root) * by.inverse_lr + by.l2);
  }
}

// FTRL-Proximal, McMahan et al. 2013, algorithm 1: σ = (√(n + g²) − √n) / lr, z ← z + g − σ·w,
// n ← n + g², w ← 0 if |z| ≤ l1, else −(z − sign(z)·l1) / ((beta + √n) / lr + l2). State: z, n.
// The paper starts at w = 0. From another start value z starts where the same equation gives it.
class Ftrl final : public UpdateRule {
 public:
  explicit Ftrl(const RuleOptions& options)
      : by_{.inverse_lr = static_cast<float>(1 / options.At("lr")),
            .beta = options.Float("beta"),
            .l1 = options.Float("l1"),
            .l2 = options.Float("l2")} {}

  int64_t StateFloats(int64_t count) const override { return 2 * count; }
  void Begin(std::span<const float> parameters, std::span<float> state) const override {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const float w = parameters[i];
      if (w != 0) state[i] = -w * (by_.beta * by_.inverse_lr + by_.l2) - std::copysign(by_.l1, w);
    }
  }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float> state,
             const PushInfo&) const override {
    const size_t count = parameters.size();
    FtrlLoop(parameters.data(), gradient.data(), state.data(), state.data() + count, count, by_);
  }

 private:
  const FtrlFactors by_;
};

}  // namespace

RuleRow FtrlRow() {
  return {"ftrl",
          {Required(AboveZero("lr")), AboveZero("beta", 1), AtLeastZero("l1"), AtLeastZero("l2")},
          [](const RuleOptions& options, int) { return std::make_unique<Ftrl>(options); }};
}

}  // namespace mydist::ps
