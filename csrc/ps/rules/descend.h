// w ← w − step·g. All rules that come to this share one loop, so they give the same bits.
#pragma once

#include <span>

namespace mydist::ps {

void Descend(std::span<float> parameters, std::span<const float> gradient, float step);

}  // namespace mydist::ps
