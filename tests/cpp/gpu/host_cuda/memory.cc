#include "gpu/host_cuda/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "gpu/host_cuda/host_cuda.h"

namespace mydist::host_cuda {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr uint8_t kFresh = 0xdb;   // What fresh memory holds: nobody may count on zeros.
constexpr uint8_t kBeyond = 0xc7;  // What lies between a block and the end of its page.

// What an IPC handle says. The file stays open as long as the block is there.
struct Exported {
  pid_t process;
  int file;
  int gpu;
  size_t bytes;
};
static_assert(sizeof(Exported) <= sizeof(cudaIpcMemHandle_t));

size_t WholePages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Null: the system has no more. `file` -1: memory of this process alone.
uint8_t* Map(size_t bytes, int file) {
  void* room = mmap(nullptr, bytes + kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = mmap(room, bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<uint8_t*>(memory);
}

void Unmap(const MemoryBlock& block) {
  munmap(block.begin, block.mapped_bytes + kPageBytes);
  if (block.file >= 0) close(block.file);
}

}  // namespace

cudaError_t Memory::Allocate(int gpu, size_t bytes, void** memory) {
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (gpu == kHost ? bytes > kGpuBytes : bytes > FreeBytes(gpu)) return cudaErrorMemoryAllocation;
  MemoryBlock block = {.bytes = bytes, .mapped_bytes = WholePages(bytes), .gpu = gpu};
  if (gpu != kHost) {
    block.file = memfd_create("host_cuda", MFD_CLOEXEC);
    if (block.file < 0 || ftruncate(block.file, static_cast<off_t>(block.mapped_bytes)) != 0) {
      return cudaErrorMemoryAllocation;
    }
  }
  block.begin = Map(block.mapped_bytes, block.file);
  if (block.begin == nullptr) return cudaErrorMemoryAllocation;
  std::memset(block.begin, kFresh, bytes);
  std::memset(block.begin + bytes, kBeyond, block.mapped_bytes - bytes);
  blocks_[reinterpret_cast<uintptr_t>(block.begin)] = block;
  *memory = block.begin;
  return cudaSuccess;
}

std::string Memory::Free(void* memory, bool is_host) {
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == blocks_.end() || found->second.is_opened ||
      (found->second.gpu == kHost) != is_host) {
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

cudaError_t Memory::Export(void* memory, cudaIpcMemHandle_t* handle) const {
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == blocks_.end() || found->second.file < 0) return cudaErrorInvalidValue;
  const Exported exported = {getpid(), found->second.file, found->second.gpu, found->second.bytes};
  std::memcpy(handle, &exported, sizeof(exported));
  return cudaSuccess;
}

cudaError_t Memory::Open(const cudaIpcMemHandle_t& handle, void** memory, int* gpu) {
  Exported exported;
  std::memcpy(&exported, &handle, sizeof(exported));
  if (exported.process == getpid()) return cudaErrorDeviceUninitialized;
  const std::string path =
      "/proc/" + std::to_string(exported.process) + "/fd/" + std::to_string(exported.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return cudaErrorMapBufferObjectFailed;
  MemoryBlock block = {.bytes = exported.bytes,
                       .mapped_bytes = WholePages(exported.bytes),
                       .gpu = exported.gpu,
                       .is_opened = true};
  block.begin = Map(block.mapped_bytes, file);
  close(file);
  if (block.begin == nullptr) return cudaErrorMapBufferObjectFailed;
  blocks_[reinterpret_cast<uintptr_t>(block.begin)] = block;
  *memory = block.begin;
  *gpu = block.gpu;
  return cudaSuccess;
}

std::string Memory::Close(void* memory) {
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == blocks_.end() || !found->second.is_opened) return "nothing that was opened";
  Unmap(found->second);
  blocks_.erase(found);
  return "";
}

size_t Memory::FreeBytes(int gpu) const {
  size_t used = 0;
  for (const auto& [address, block] : blocks_) {
    if (block.gpu == gpu && !block.is_opened) used += block.bytes;
  }
  return kGpuBytes - used;
}

int Memory::Count(bool is_host, bool is_opened) const {
  return static_cast<int>(std::count_if(blocks_.begin(), blocks_.end(), [&](const auto& entry) {
    const MemoryBlock& block = entry.second;
    return (block.gpu == kHost) == is_host && block.is_opened == is_opened;
  }));
}

}  // namespace mydist::host_cuda
