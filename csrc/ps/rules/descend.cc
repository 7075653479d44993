#include "ps/rules/descend.h"

#include "kernels/loop.h"

namespace mydist::ps {
namespace {

MYDIST_LOOP void DescendLoop(float* __restrict w, const float* __restrict g, size_t count,
                             float step) {
  for (size_t i = 0; i < count; ++i) w[i] -= step * g[i];
}

}  // namespace

void Descend(std::span<float> parameters, std::span<const float> gradient, float step) {
  DescendLoop(parameters.data(), gradient.data(), parameters.size(), step);
}

}  // namespace mydist::ps
