// LaunchShape: how many threads run a kernel.
#pragma once

#include <cstdint>

namespace mydist::cuda {

struct LaunchShape {
  uint32_t blocks = 1;
  int threads = 1;  // Of a block.
};

}  // namespace mydist::cuda
