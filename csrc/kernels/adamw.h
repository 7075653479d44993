// Adamw: one step of AdamW (Loshchilov and Hutter, arXiv:1711.05101) on float32 in host memory.
// Pure and thread-safe. Each element is updated by itself, with the same operations in the same
// order whatever its position, the count, the alignment or the CPU, and without fused multiply-add.
// So a slice of a tensor gets the bits that the whole tensor would get there.
#pragma once

#include <cstdint>

#include "base/export.h"

namespace mydist {

// What is the same for all elements; computed in double, as torch does, and rounded once.
struct MYDIST_EXPORT AdamwStep {
  float decay = 1.0F;          // 1 - lr × weight_decay
  float first_weight = 0.1F;   // 1 - beta1
  float second_decay = 0.9F;   // beta2
  float second_weight = 0.1F;  // 1 - beta2
  float second_root = 1.0F;    // sqrt(1 - beta2^step)
  float epsilon = 1e-8F;
  float step_size = 1e-3F;  // lr ÷ (1 - beta1^step)
};

struct AdamwSettings {
  double lr;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
};

// `step` counts from 1.
MYDIST_EXPORT AdamwStep AdamwStepAt(const AdamwSettings& settings, int64_t step);

// The memory of one step; `count` elements each, nothing overlaps.
struct AdamwMemory {
  float* parameters;
  const float* gradients;
  float* first;   // Moments: of the gradients,
  float* second;  // and of their squares.
};

// p = p × decay; m = m + first_weight × (g - m); v = v × second_decay + second_weight × g × g;
// p = p - step_size × m ÷ (sqrt(v) ÷ second_root + epsilon).
MYDIST_EXPORT void RunAdamw(const AdamwMemory& memory, int64_t count, const AdamwStep& step);

}  // namespace mydist
