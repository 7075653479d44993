#include <algorithm>
#include <cmath>

#include "kernels/loop.h"
#include "ps/rules/options.h"
#include "ps/rules/rows.h"

namespace mydist::ps {
namespace {

template <bool kIsLate>
MYDIST_LOOP_PART void ReviseElements(float* __restrict w, const float* __restrict g,
                                     float* __restrict sum, float* __restrict square,
                                     float* __restrict largest, const float* __restrict sum_read,
                                     size_t count, float lr) {
  for (size_t i = 0; i < count; ++i) {
    const float missed = kIsLate ? sum[i] - sum_read[i] : 0;
    const float z = square[i] + (g[i] * g[i] + 2 * g[i] * missed);
    const float z_max = std::max(largest[i], z);
    const float old_step = lr / std::sqrt(largest[i]);
    const float step = lr / std::sqrt(z_max);
    w[i] += (old_step - step) * missed - step * g[i];
    sum[i] += g[i];
    square[i] = z;
    largest[i] = z_max;
  }
}

MYDIST_LOOP void LateRevisionLoop(float* __restrict w, const float* __restrict g,
                                  float* __restrict sum, float* __restrict square,
                                  float* __restrict largest, const float* __restrict sum_read,
                                  size_t count, float lr) {
  ReviseElements<true>(w, g, sum, square, largest, sum_read, count, lr);
}

MYDIST_LOOP void PromptRevisionLoop(float* __restrict w, const float* __restrict g,
                                    float* __restrict sum, float* __restrict square,
                                    float* __restrict largest, size_t count, float lr) {
  ReviseElements<false>(w, g, sum, square, largest, nullptr, count, lr);
}

// AdaptiveRevision, McMahan & Streeter 2014. G is the sum of all gradients, and b the part of it
// that this worker has not pulled: η = lr/√z', z ← z + g² + 2·g·b, z' ← max(z', z), η' = lr/√z',
// w ← w − η'·g + (η − η')·b. A late gradient so revises the steps of those that it missed.
// z and z' start at 1. State: G, z, z', and for each worker G as it has pulled it last.
class AdaptiveRevision final : public UpdateRule {
 public:
  AdaptiveRevision(const RuleOptions& options, int workers)
      : workers_(workers), lr_(options.Float("lr")) {}

  int64_t StateFloats(int64_t count) const override { return count * (3 + workers_); }
  void Begin(std::span<const float> parameters, std::span<float> state) const override {
    const size_t count = parameters.size();
    std::fill_n(state.begin() + static_cast<std::ptrdiff_t>(count), 2 * count, 1.0f);
  }
  void Apply(std::span<float> parameters, std::span<const float> gradient, std::span<float> state,
             const PushInfo& push) const override {
    const size_t count = parameters.size();
    float* const w = parameters.data();
    float* const sum = state.data();
    float* const square = sum + count;
    float* const largest = square + count;
    // A mean over all workers has no delay, and worker 0 may have pulled long ago.
    if (push.is_mean) {
      PromptRevisionLoop(w, gradient.data(), sum, square, largest, count, lr_);
    } else {
      LateRevisionLoop(w, gradient.data(), sum, square, largest,
                       SumRead(state, count, push.worker).data(), count, lr_);
    }
  }
  void OnPull(std::span<const float> parameters, std::span<float> state,
              int worker) const override {
    const size_t count = parameters.size();
    std::copy_n(state.begin(), count, SumRead(state, count, worker).begin());
  }

 private:
  static std::span<float> SumRead(std::span<float> state, size_t count, int worker) {
    return state.subspan((3 + static_cast<size_t>(worker)) * count, count);
  }

  const int workers_;
  const float lr_;
};

}  // namespace

RuleRow AdaptiveRevisionRow() {
  return {"adaptive_revision",
          {Required(AtLeastZero("lr"))},
          [](const RuleOptions& options, int workers) {
            return std::make_unique<AdaptiveRevision>(options, workers);
          }};
}

}  // namespace mydist::ps
