// The memory of HostCuda: of GPUs, pinned, and of other processes' GPUs. A block of a GPU is a file
// in memory, so that other processes can map it; behind each block is a page that nobody may touch,
// and what is left of its last page has to stay as it is.
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
  int file = -1;           // Of a block of a GPU of this process.
  bool is_opened = false;  // Of another process.
};

class Memory {
 public:
  // On a GPU, or pinned. cudaErrorMemoryAllocation when there is not so much.
  cudaError_t Allocate(int gpu, size_t bytes, void** memory);
  // "": freed; else what is wrong.
  std::string Free(void* memory, bool is_host);
  // The block that holds all these bytes; null: none does.
  const MemoryBlock* Find(const void* memory, size_t bytes) const;

  cudaError_t Export(void* memory, cudaIpcMemHandle_t* handle) const;
  // Of which GPU it is goes to `gpu`.
  cudaError_t Open(const cudaIpcMemHandle_t& handle, void** memory, int* gpu);
  std::string Close(void* memory);

  size_t FreeBytes(int gpu) const;
  int Count(bool is_host, bool is_opened) const;

 private:
  std::map<uintptr_t, MemoryBlock> blocks_;  // By the address where they begin.
};

}  // namespace mydist::host_cuda
