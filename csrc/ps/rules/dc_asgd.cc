#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/loop.h"
#include "ps/rules/descend.h"
#include "ps/rules/options.h"
#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

// `most`: of the correction, as a part of the gradient.
struct DcAsgdFactors {
  float lr, lam, most, momentum, fresh;
};

MYDIST_LOOP_PART float Compensated(float g, float lam, float most, float moved) {
  const float part = std::min(std::max(lam * g * moved, -most), most);
  return moved != 0 ? g + g * part : g;
}

MYDIST_LOOP void DcAsgdLoop(float* __restrict w, const float* __restrict g,
                            const float* __restrict backup, size_t count, DcAsgdFactors by) {
  for (size_t i = 0; i < count; ++i) {
    w[i] -= by.lr * Compensated(g[i], by.lam, by.most, w[i] - backup[i]);
  }
}

MYDIST_LOOP_PART float MeanSquare(float before, float g, DcAsgdFactors by) {
  return by.momentum * before + by.fresh * (g * g);
}

MYDIST_LOOP void DcAsgdMeanSquareLoop(const float* __restrict g, float* __restrict square,
                                      size_t count, DcAsgdFactors by) {
  for (size_t i = 0; i < count; ++i) square[i] = MeanSquare(square[i], g[i], by);
}

MYDIST_LOOP void AdaptiveDcAsgdLoop(float* __restrict w, const float* __restrict g,
                                    const float* __restrict backup, float* __restrict square,
                                    size_t count, DcAsgdFactors by) {
  constexpr float kEpsilon = 1e-7f;
  for (size_t i = 0; i < count; ++i) {
    const float s = MeanSquare(square[i], g[i], by);
    square[i] = s;
    const float lam = by.lam / std::sqrt(s + kEpsilon);
    w[i] -= by.lr * Compensated(g[i], lam, by.most, w[i] - backup[i]);
  }
}

// Asynchronous SGD with delay compensation, Zheng et al. 2017. The backup is w as this worker has
// pulled it last: w ← w − lr·(g + lam·g²·(w − backup)). With adaptive √(s + 1e-7) divides lam, and
// s ← momentum·s + (1 − momentum)·g². No part |lam·g·(w − backup)| counts for more than clip, which
// is not in the paper; 0: all of it counts. State: the backup of each worker, then s with adaptive.
class DcAsgd final : public UpdateRule {
 public:
  DcAsgd(const RuleOptions& options, int workers)
      : workers_(workers),
        is_adaptive_(options.Is("adaptive")),
        by_{.lr = options.Float("lr"),
            .lam = options.Float("lam"),
            .most = options.Is("clip") ? options.Float("clip") : std::numeric_limits<float>::max(),
            .momentum = options.Float("momentum"),
            .fresh = static_cast<float>(1 - options.At("momentum"))} {}

  int64_t StateFloats(int64_t count) const override {
    return count * (workers_ + (is_adaptive_ ? 1 : 0));
  }
  void Begin(std::span<const float> parameters, std::span<float> state) const override {
    for (int worker = 0; worker < workers_; ++worker) OnPull(parameters, state, worker);
  }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float> state,
             const PushInfo& push) const override {
    const size_t count = parameters.size();
    const float* const backup = state.data() + static_cast<size_t>(push.worker) * count;
    float* const square = state.data() + static_cast<size_t>(workers_) * count;
    // A mean over all workers has no delay, and the backup of worker 0 may be an old one.
    if (by_.lam == 0 || push.is_mean) {
      if (is_adaptive_) DcAsgdMeanSquareLoop(gradient.data(), square, count, by_);
      Descend(parameters, gradient, by_.lr);
    } else if (is_adaptive_) {
      AdaptiveDcAsgdLoop(parameters.data(), gradient.data(), backup, square, count, by_);
    } else {
      DcAsgdLoop(parameters.data(), gradient.data(), backup, count, by_);
    }
  }
  void OnPull(std::span<const float> parameters, std::span<float> state,
              int worker) const override {
    const size_t count = parameters.size();
    std::copy(parameters.begin(), parameters.end(),
              state.subspan(static_cast<size_t>(worker) * count, count).begin());
  }

 private:
  const int workers_;
  const bool is_adaptive_;
  const DcAsgdFactors by_;
};

}  // namespace

RuleRow DcAsgdRow() {
  return {"dc_asgd",
          {Required(AtLeastZero("lr")), Required(AtLeastZero("lam")), Switch("adaptive"),
           BelowOne("momentum", 0.95), AtLeastZero("clip", 1)},
          [](const RuleOptions& options, int workers) {
            return std::make_unique<DcAsgd>(options, workers);
          }};
}

}  // namespace mydist::ps
