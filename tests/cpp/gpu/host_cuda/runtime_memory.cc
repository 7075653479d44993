// Memory and copies of HostCuda.
#include <cstring>

#include "gpu/host_cuda/world.h"

namespace mydist::host_cuda {
namespace {

cudaError_t Allocate(const char* call, bool is_host, size_t bytes, void** memory) {
  return World::Get().Run(call, Needs::kGpuAndNoGraph, [&](World& world) {
    return world.memory.Allocate(is_host ? kHost : world.CurrentGpu(), bytes, memory);
  });
}

// Waits for the GPU, as CUDA does.
cudaError_t Free(const char* call, bool is_host, void* memory) {
  return World::Get().Run(call, Needs::kGpuAndNoGraph, [&](World& world) {
    if (memory == nullptr) return cudaSuccess;
    const MemoryBlock* const block = world.memory.Find(memory, 1);
    const bool is_on_gpu = block != nullptr && block->gpu != kHost;
    const int gpu = is_on_gpu ? block->gpu : world.CurrentGpu();
    if (const cudaError_t error = world.AwaitGpu(gpu); error != cudaSuccess) return error;
    const std::string wrong = world.memory.Free(memory, is_host);
    if (!wrong.empty()) world.Complain(wrong);
    return wrong.empty() ? cudaSuccess : cudaErrorInvalidValue;
  });
}

// With the lock. What `kind` says of where the two lie has to be so; and in a copy behind which
// the host does not wait, both have to be memory that a GPU reaches.
bool IsLegalCopy(World& world, const void* target, const void* source, size_t bytes,
                 cudaMemcpyKind kind, bool is_async) {
  const MemoryBlock* const to = world.memory.Find(target, bytes);
  const MemoryBlock* const from = world.memory.Find(source, bytes);
  const auto is_device = [](const MemoryBlock* block) {
    return block != nullptr && block->gpu != kHost;
  };
  if (is_async && (to == nullptr || from == nullptr)) {
    world.Complain("memory that is not pinned, or that ends before the copy does");
    return false;
  }
  if (is_device(to) && is_device(from) && to->gpu != from->gpu) {
    world.Complain("memory of two GPUs, without saying so: it may not reach the one");
    return false;
  }
  if (kind == cudaMemcpyDefault) return true;
  const bool wants_device_target =
      kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool wants_device_source =
      kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (is_device(to) == wants_device_target && is_device(from) == wants_device_source) return true;
  world.Complain("memory of another kind than it says, or too little of it");
  return false;
}

// With the lock.
void PutCopy(World& world, CUstream_st& stream, void* target, const void* source, size_t bytes) {
  world.Put(stream, [=] { std::memcpy(target, source, bytes); });
  ++world.workload.copies;
}

}  // namespace
}  // namespace mydist::host_cuda

using mydist::host_cuda::IsLegalCopy;
using mydist::host_cuda::MemoryBlock;
using mydist::host_cuda::Needs;
using mydist::host_cuda::PutCopy;
using mydist::host_cuda::World;

extern "C" {

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return mydist::host_cuda::Allocate("cudaMalloc", false, bytes, memory);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return mydist::host_cuda::Allocate("cudaHostAlloc", true, bytes, memory);
}
cudaError_t cudaFree(void* memory) { return mydist::host_cuda::Free("cudaFree", false, memory); }
cudaError_t cudaFreeHost(void* memory) {
  return mydist::host_cuda::Free("cudaFreeHost", true, memory);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return World::Get().Run("cudaMemGetInfo", Needs::kGpu, [&](World& world) {
    *free_bytes = world.memory.FreeBytes(world.CurrentGpu());
    *total_bytes = mydist::host_cuda::kGpuBytes;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return World::Get().Run("cudaMemcpyAsync", Needs::kGpu, [&](World& world) {
    CUstream_st* const found = world.Resolve(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (!IsLegalCopy(world, target, source, bytes, kind, true)) return cudaErrorInvalidValue;
    PutCopy(world, *found, target, source, bytes);
    return cudaSuccess;
  });
}

// On the default stream, and the host waits. Our streams do not wait for that one.
cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  return World::Get().Run("cudaMemcpy", Needs::kGpuAndNoGraph, [&](World& world) {
    if (bytes == 0) return cudaSuccess;
    CUstream_st* const found = world.Resolve(nullptr);
    if (!IsLegalCopy(world, target, source, bytes, kind, false)) return cudaErrorInvalidValue;
    PutCopy(world, *found, target, source, bytes);
    return world.Await(world.MarkEnd(*found), found->gpu);
  });
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return World::Get().Run("cudaMemsetAsync", Needs::kGpu, [&](World& world) {
    CUstream_st* const found = world.Resolve(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (world.memory.Find(memory, bytes) == nullptr) {
      world.Complain("no memory, or too little");
      return cudaErrorInvalidValue;
    }
    world.Put(*found, [=] { std::memset(memory, value, bytes); });
    return cudaSuccess;
  });
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

}  // extern "C"
