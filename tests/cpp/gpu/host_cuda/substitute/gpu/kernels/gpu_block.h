// GpuBlock over HostCuda: thread 0 of a block does what all of them do, step by step; the others
// have nothing left to do.
#pragma once

#include "gpu/emulated_ipc.h"

namespace mydist::cuda {

class GpuBlock {
 public:
  uint32_t index() const { return block_.index(); }
  uint32_t count() const { return block_.count(); }
  template <typename Work>
  void ForEachThread(const Work& work) const {
    if (threadIdx.x == 0) block_.ForEachThread(work);
  }
  template <typename Test>
  bool All(const Test& test) const {
    return threadIdx.x == 0 && block_.All(test);
  }
  void Pause() const { block_.Pause(); }

 private:
  const testing::HostBlock block_{blockIdx.x, gridDim.x};
};

}  // namespace mydist::cuda
