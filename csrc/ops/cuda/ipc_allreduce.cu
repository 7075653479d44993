#include "ops/cuda/ipc_allreduce.h"

#include "ops/cuda/cuda_status.h"
#include "ops/cuda/ipc_plan.h"

namespace mydist::cuda {
namespace {

// A block as its threads see it; tests have another one. What tests run too is for both sides, but
// this is never used on the host.
struct GpuBlock {
  MYDIST_HOST_DEVICE uint32_t index() const {
#if defined(__CUDA_ARCH__)
    return blockIdx.x;
#else
    return 0;
#endif
  }
  MYDIST_HOST_DEVICE uint32_t count() const {
#if defined(__CUDA_ARCH__)
    return gridDim.x;
#else
    return 0;
#endif
  }
  template <typename Work>
  MYDIST_HOST_DEVICE void ForEachThread(const Work& work) const {
#if defined(__CUDA_ARCH__)
    work(threadIdx.x);
    __syncthreads();
#endif
  }
  template <typename Test>
  MYDIST_HOST_DEVICE bool All(const Test& test) const {
#if defined(__CUDA_ARCH__)
    return __syncthreads_and(test(threadIdx.x) ? 1 : 0) != 0;
#else
    return false;
#endif
  }
  // Short: it is added to the latency of every allreduce.
  MYDIST_HOST_DEVICE void Pause() const {
#if defined(__CUDA_ARCH__)
    __nanosleep(20);
#endif
  }
};

template <typename T>
__global__ void __launch_bounds__(kIpcThreads)
    IpcAllreduceKernel(const __grid_constant__ IpcLaunch launch) {
  RunIpcBlock<T>(launch, GpuBlock());
}

template <typename T>
const void* KernelOf() {
  return reinterpret_cast<const void*>(&IpcAllreduceKernel<T>);
}

}  // namespace

Status LaunchIpcAllreduce(const IpcAllreduce& job, cudaStream_t stream) {
  return VisitFoldElement(job.reduction.dtype, [&]<typename T>(T, int parts) {
    IpcLaunch launch = IpcLaunchOf(job, parts);
    void* arguments[] = {&launch};
    return CudaStatus(cudaLaunchKernel(KernelOf<T>(), dim3(IpcBlocksOf<T>(launch)),
                                       dim3(kIpcThreads), arguments, 0, stream),
                      "cudaLaunchKernel(IpcAllreduce)");
  });
}

Status LoadIpcKernels() {
  return ForEachFoldElement([]<typename T>(T, int) {
    cudaFuncAttributes attributes;
    return CudaStatus(cudaFuncGetAttributes(&attributes, KernelOf<T>()),
                      "cudaFuncGetAttributes(IpcAllreduce)");
  });
}

}  // namespace mydist::cuda
