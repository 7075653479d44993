// RunIpcOnHost: the kernel between GPUs of a host, run for one rank on the host, with the code that
// the GPU runs: the threads of a block one after the other, step by step. Waits for the other ranks
// as the kernel does, so each needs a thread of its own.
#pragma once

#include <cstdint>
#include <semaphore>
#include <thread>
#include <vector>

#include "gpu/kernels/ipc_plan.h"

namespace mydist::testing {

class HostBlock {
 public:
  HostBlock(uint32_t index, uint32_t count) : index_(index), count_(count) {}

  uint32_t index() const { return index_; }
  uint32_t count() const { return count_; }
  template <typename Work>
  void ForEachThread(const Work& work) const {
    for (uint32_t thread = 0; thread < cuda::kIpcThreads; ++thread) work(thread);
  }
  template <typename Test>
  bool All(const Test& test) const {
    bool all = true;
    for (uint32_t thread = 0; thread < cuda::kIpcThreads; ++thread) all = test(thread) && all;
    return all;
  }
  void Pause() const { std::this_thread::yield(); }

 private:
  const uint32_t index_;
  const uint32_t count_;
};

enum class BlockOrder {
  kOneByOne,  // As on a GPU with room for one.
  kAtOnce,
};

// `places`: of a GPU that ranks share and do not take turns on; a block keeps one while it runs.
inline void RunIpcOnHost(const IpcAllreduce& job, BlockOrder order = BlockOrder::kOneByOne,
                         std::counting_semaphore<>* places = nullptr) {
  cuda::VisitFoldElement(job.reduction.dtype, [&]<typename T>(T, int parts) {
    const cuda::IpcLaunch launch = cuda::IpcLaunchOf(job, parts);
    const uint32_t count = cuda::IpcBlocksOf<T>(launch, job.most_blocks);
    std::vector<std::thread> at_once;
    for (uint32_t index = 0; index < count; ++index) {
      const auto run = [launch, index, count, places] {
        if (places != nullptr) places->acquire();
        cuda::RunIpcBlock<T>(launch, HostBlock(index, count));
        if (places != nullptr) places->release();
      };
      if (order == BlockOrder::kAtOnce) {
        at_once.emplace_back(run);
      } else {
        run();
      }
    }
    for (std::thread& block : at_once) block.join();
  });
}

}  // namespace mydist::testing
