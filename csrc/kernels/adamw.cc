#include "kernels/adamw.h"

#include <cmath>

#include "kernels/simd/simd_path.h"

namespace mydist {

AdamwStep AdamwStepAt(const AdamwSettings& settings, int64_t step) {
  const auto steps = static_cast<double>(step);
  const double first_correction = 1 - std::pow(settings.beta1, steps);
  const double second_correction = 1 - std::pow(settings.beta2, steps);
  return {.decay = static_cast<float>(1 - settings.lr * settings.weight_decay),
          .first_weight = static_cast<float>(1 - settings.beta1),
          .second_decay = static_cast<float>(settings.beta2),
          .second_weight = static_cast<float>(1 - settings.beta2),
          .second_root = static_cast<float>(std::sqrt(second_correction)),
          .epsilon = static_cast<float>(settings.epsilon),
          .step_size = static_cast<float>(settings.lr / first_correction)};
}

void RunAdamw(const AdamwMemory& memory, int64_t count, const AdamwStep& step) {
  const simd::AdamwCall call = {.parameters = memory.parameters,
                                .gradients = memory.gradients,
                                .first = memory.first,
                                .second = memory.second,
                                .count = count,
                                .decay = step.decay,
                                .first_weight = step.first_weight,
                                .second_decay = step.second_decay,
                                .second_weight = step.second_weight,
                                .second_root = step.second_root,
                                .epsilon = step.epsilon,
                                .step_size = step.step_size};
  simd::CurrentKernels().adamw(call);
}

}  // namespace mydist
