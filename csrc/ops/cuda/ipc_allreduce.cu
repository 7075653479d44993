#include "ops/cuda/ipc_allreduce.h"

#include "ops/cuda/gpu_block.h"
#include "ops/cuda/ipc_plan.h"
#include "ops/cuda/kernel_launch.h"

namespace mydist::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kIpcThreads)
    IpcAllreduceKernel(const __grid_constant__ IpcLaunch launch) {
  RunIpcBlock<T>(launch, GpuBlock());
}

}  // namespace

Status LaunchIpcAllreduce(const IpcAllreduce& job, cudaStream_t stream) {
  return VisitFoldElement(job.reduction.dtype, [&]<typename T>(T, int parts) {
    const IpcLaunch launch = IpcLaunchOf(job, parts);
    return LaunchKernel("cudaLaunchKernel(IpcAllreduce)", IpcAllreduceKernel<T>,
                        {.blocks = IpcBlocksOf<T>(launch), .threads = kIpcThreads}, stream, launch);
  });
}

Status LoadIpcKernels() {
  return ForEachFoldElement([]<typename T>(T, int) {
    return LoadKernel("cudaFuncGetAttributes(IpcAllreduce)", IpcAllreduceKernel<T>);
  });
}

}  // namespace mydist::cuda
