#include "gpu/host_cuda/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "gpu/host_cuda/host_cuda.h"

namespace mydist::host_cuda {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr uint8_t kFresh = 0xdb;   // What fresh memory holds: nobody may count on zeros.
constexpr uint8_t kBeyond = 0xc7;  // What lies between a block and the end of its page.

size_t WholePages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Null: the system has no more.
uint8_t* Map(size_t bytes) {
  void* room = mmap(nullptr, bytes + kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  const bool is_usable = mprotect(room, bytes, PROT_READ | PROT_WRITE) == 0;
  return is_usable ? static_cast<uint8_t*>(room) : nullptr;
}

void Unmap(const MemoryBlock& block) { munmap(block.begin, block.mapped_bytes + kPageBytes); }

}  // namespace

cudaError_t Memory::Allocate(int gpu, size_t bytes, void** memory) {
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (gpu == kHost ? bytes > kGpuBytes : bytes > FreeBytes(gpu)) return cudaErrorMemoryAllocation;
  MemoryBlock block = {.bytes = bytes, .mapped_bytes = WholePages(bytes), .gpu = gpu};
  block.begin = Map(block.mapped_bytes);
  if (block.begin == nullptr) return cudaErrorMemoryAllocation;
  std::memset(block.begin, kFresh, bytes);
  std::memset(block.begin + bytes, kBeyond, block.mapped_bytes - bytes);
  blocks_[reinterpret_cast<uintptr_t>(block.begin)] = block;
  *memory = block.begin;
  return cudaSuccess;
}

std::string Memory::Free(void* memory, bool is_host) {
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == blocks_.end() || (found->second.gpu == kHost) != is_host) {
    return "not the beginning of such memory";
  }
  const MemoryBlock block = found->second;
  const bool is_whole = std::all_of(block.begin + block.bytes, block.begin + block.mapped_bytes,
                                    [](uint8_t byte) { return byte == kBeyond; });
  Unmap(block);
  blocks_.erase(found);
  return is_whole ? "" : "somebody wrote beyond its end";
}

const MemoryBlock* Memory::Find(const void* memory, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto behind = blocks_.upper_bound(address);
  if (behind == blocks_.begin()) return nullptr;
  const MemoryBlock& block = (--behind)->second;
  return address + bytes <= behind->first + block.bytes ? &block : nullptr;
}

size_t Memory::FreeBytes(int gpu) const {
  size_t used = 0;
  for (const auto& [address, block] : blocks_) {
    if (block.gpu == gpu) used += block.bytes;
  }
  return kGpuBytes - used;
}

int Memory::Count(bool is_host) const {
  return static_cast<int>(std::count_if(blocks_.begin(), blocks_.end(), [&](const auto& entry) {
    return (entry.second.gpu == kHost) == is_host;
  }));
}

}  // namespace mydist::host_cuda
