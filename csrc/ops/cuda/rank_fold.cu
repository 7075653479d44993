#include "ops/cuda/rank_fold.h"

#include "ops/cuda/cuda_status.h"
#include "ops/cuda/rank_fold_thread.h"

namespace mydist::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kFoldThreads)
    RankFoldKernel(const __grid_constant__ FoldLaunch launch) {
  FoldAsThread<T>(launch, {blockIdx.x, gridDim.x, threadIdx.x});
}

template <typename T>
const void* KernelOf() {
  return reinterpret_cast<const void*>(&RankFoldKernel<T>);
}

}  // namespace

Status LaunchRankFold(const RankFold& fold, cudaStream_t stream) {
  return VisitFoldElement(fold.reduction.dtype, [&]<typename T>(T, int parts) {
    FoldLaunch launch = FoldLaunchOf(fold, parts);
    void* arguments[] = {&launch};
    return CudaStatus(cudaLaunchKernel(KernelOf<T>(), dim3(FoldBlocksOf<T>(launch)),
                                       dim3(kFoldThreads), arguments, 0, stream),
                      "cudaLaunchKernel(RankFold)");
  });
}

Status LoadFoldKernels() {
  return ForEachFoldElement([]<typename T>(T, int) {
    cudaFuncAttributes attributes;
    return CudaStatus(cudaFuncGetAttributes(&attributes, KernelOf<T>()),
                      "cudaFuncGetAttributes(RankFold)");
  });
}

}  // namespace mydist::cuda
