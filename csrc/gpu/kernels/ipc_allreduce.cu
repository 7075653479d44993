#include "gpu/kernels/ipc_allreduce.h"

#include <algorithm>
#include <limits>

#include "gpu/kernels/gpu_block.h"
#include "gpu/kernels/ipc_plan.h"
#include "gpu/kernels/kernel_launch.h"

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
                        {.blocks = IpcBlocksOf<T>(launch, job.most_blocks), .threads = kIpcThreads},
                        stream, launch);
  });
}

Status LoadIpcKernels() {
  return ForEachFoldElement([]<typename T>(T, int) {
    return LoadKernel("cudaFuncGetAttributes(IpcAllreduce)", IpcAllreduceKernel<T>);
  });
}

Result<int> IpcBlocksPerProcessor() {
  int least = std::numeric_limits<int>::max();
  const Status status = ForEachFoldElement([&]<typename T>(T, int) {
    MYDIST_ASSIGN_OR_RETURN(const int count,
                            BlocksPerProcessor("cudaOccupancyMaxActiveBlocksPerMultiprocessor",
                                               IpcAllreduceKernel<T>, kIpcThreads));
    least = std::min(least, count);
    return Status::Ok();
  });
  if (!status.ok()) return status;
  return least;
}

}  // namespace mydist::cuda
