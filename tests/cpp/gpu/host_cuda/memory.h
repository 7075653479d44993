// The memory of HostCuda: of GPUs, and pinned. A page without access follows each
// block, and the rest of its last page must not change.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace mydist::host_cuda {

inline constexpr int kHost = -1;

struct MemoryBlock {
  uint8_t* begin = nullptr;
  size_t bytes = 0;
  size_t mapped_bytes = 0;
  int gpu = kHost;
};

class Memory {
 public:
  // On a GPU, or pinned. cudaErrorMemoryAllocation when there is not so much.
  cudaError_t Allocate(int gpu, size_t bytes, void** memory);
  // "": freed; else what is wrong.
  std::string Free(void* memory, bool is_host);
  // The block that holds all these bytes; null: none does.
  const MemoryBlock* Find(const void* memory, size_t bytes) const;

  size_t FreeBytes(int gpu) const;
  int Count(bool is_host) const;

 private:
  std::map<uintptr_t, MemoryBlock> blocks_;  // By the address where they begin.
};

}  // namespace mydist::host_cuda
