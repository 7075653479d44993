// Each rule for one parameter, in float64, written as its paper or torch.optim writes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>

#include "ps/rules/trial.h"
#include "ps/rules/update_rule.h"

namespace mydist::ps {

class Reference {
 public:
  Reference(const RuleSpec& spec, double start) : w(start), spec_(spec) {}
  virtual ~Reference() = default;
  virtual void Push(double g, const PushInfo& push) = 0;
  virtual void Pull(int) {}

  double w;

 protected:
  double Of(std::string_view name, double otherwise = 0) const {
    for (const auto& [option, value] : spec_.options) {
      if (option == name) return value;
    }
    return otherwise;
  }

 private:
  const RuleSpec& spec_;
};

struct AddReference final : Reference {
  using Reference::Reference;
  void Push(double g, const PushInfo&) override { w += g; }
};

struct AssignReference final : Reference {
  using Reference::Reference;
  void Push(double g, const PushInfo&) override { w = g; }
};

struct ElasticReference final : Reference {
  using Reference::Reference;
  void Push(double x, const PushInfo&) override { w = (1 - Of("alpha")) * w + Of("alpha") * x; }
};

struct SgdReference final : Reference {
  using Reference::Reference;
  void Push(double g, const PushInfo& push) override {
    double d = g + Of("weight_decay") * w;
    if (Of("momentum") != 0) {
      velocity = push.updates == 0 ? d : Of("momentum") * velocity + (1 - Of("dampening")) * d;
      d = Of("nesterov") != 0 ? d + Of("momentum") * velocity : velocity;
    }
    w -= Of("lr") * d;
  }
  double velocity = 0;
};

template <bool kDecoupled>
struct AdamReference final : Reference {
  using Reference::Reference;
  void Push(double g, const PushInfo& push) override {
    const double lr = Of("lr", 1e-3), beta1 = Of("beta1", 0.9), beta2 = Of("beta2", 0.999);
    const double decay = Of("weight_decay", kDecoupled ? 0.01 : 0);
    const double t = static_cast<double>(push.updates + 1);
    if (kDecoupled) w -= lr * decay * w;
    const double d = kDecoupled ? g : g + decay * w;
    m = beta1 * m + (1 - beta1) * d;
    v = beta2 * v + (1 - beta2) * d * d;
    largest = Of("amsgrad") != 0 ? std::max(largest, v) : v;
    const double m_hat = m / (1 - std::pow(beta1, t));
    const double v_hat = largest / (1 - std::pow(beta2, t));
    w -= lr * m_hat / (std::sqrt(v_hat) + Of("eps", 1e-8));
  }
  double m = 0, v = 0, largest = 0;
};

struct AdagradReference final : Reference {
  using Reference::Reference;
  void Push(double g, const PushInfo& push) override {
    if (push.updates == 0) sum = Of("initial_accumulator_value");
    const double d = g + Of("weight_decay") * w;
    sum += d * d;
    const double lr = Of("lr", 0.01) / (1 + static_cast<double>(push.updates) * Of("lr_decay"));
    w -= lr * d / (std::sqrt(sum) + Of("eps", 1e-10));
  }
  double sum = 0;
};

// The paper's z, n and w. At the start z solves the paper's equation for w.
struct FtrlReference final : Reference {
  FtrlReference(const RuleSpec& spec, double start)
      : Reference(spec, start), z(-w * Slope() - (w > 0 ? 1 : -1) * Of("l1")) {}
  void Push(double g, const PushInfo&) override {
    const double sigma = (std::sqrt(n + g * g) - std::sqrt(n)) / Of("lr");
    z += g - sigma * w;
    n += g * g;
    w = std::abs(z) <= Of("l1") ? 0 : -(z - (z > 0 ? 1 : -1) * Of("l1")) / Slope();
  }
  double Slope() const { return (Of("beta", 1) + std::sqrt(n)) / Of("lr") + Of("l2"); }
  double n = 0;
  double z;
};

struct DcAsgdReference final : Reference {
  DcAsgdReference(const RuleSpec& spec, double start) : Reference(spec, start) {
    std::fill_n(backup, kTrialWorkers, start);
  }
  void Push(double g, const PushInfo& push) override {
    square = Of("momentum", 0.95) * square + (1 - Of("momentum", 0.95)) * g * g;
    const double lam = Of("lam") / (Of("adaptive") != 0 ? std::sqrt(square + 1e-7) : 1);
    const double clip = Of("clip", 1) > 0 ? Of("clip", 1) : 1e300;
    const double part = std::clamp(lam * g * (w - backup[push.worker]), -clip, clip);
    w -= Of("lr") * (g + g * part);
  }
  void Pull(int worker) override { backup[worker] = w; }
  double backup[kTrialWorkers];
  double square = 0;
};

struct AdaDelayReference final : Reference {
  using Reference::Reference;
  void Push(double g, const PushInfo& push) override {
    const double t = static_cast<double>(push.updates + 1);
    const double tau = static_cast<double>(push.updates - push.updates_read);
    w -= g / (Of("smoothness") + Of("c") * std::sqrt(t + tau));
  }
};

struct AdaptiveRevisionReference final : Reference {
  using Reference::Reference;
  void Push(double g, const PushInfo& push) override {
    const double missed = sum - sum_read[push.worker];
    const double old_step = Of("lr") / std::sqrt(largest);
    square += g * g + 2 * g * missed;
    largest = std::max(largest, square);
    const double step = Of("lr") / std::sqrt(largest);
    w += -step * g + (old_step - step) * missed;
    sum += g;
  }
  void Pull(int worker) override { sum_read[worker] = sum; }
  double sum = 0, square = 1, largest = 1;
  double sum_read[kTrialWorkers] = {};
};

}  // namespace mydist::ps
