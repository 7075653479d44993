#include "gpu/kernels/rank_fold.h"

#include "gpu/kernels/kernel_launch.h"
#include "gpu/kernels/rank_fold_thread.h"

namespace mydist::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kFoldThreads)
    RankFoldKernel(const __grid_constant__ FoldLaunch launch) {
  FoldAsThread<T>(launch, {blockIdx.x, gridDim.x, threadIdx.x});
}

}  // namespace

Status LaunchRankFold(const RankFold& fold, cudaStream_t stream) {
  return VisitFoldElement(fold.reduction.dtype, [&]<typename T>(T, int parts) {
    const FoldLaunch launch = FoldLaunchOf(fold, parts);
    return LaunchKernel("cudaLaunchKernel(RankFold)", RankFoldKernel<T>,
                        {.blocks = FoldBlocksOf<T>(launch), .threads = kFoldThreads}, stream,
                        launch);
  });
}

Status LoadFoldKernels() {
  return ForEachFoldElement([]<typename T>(T, int) {
    return LoadKernel("cudaFuncGetAttributes(RankFold)", RankFoldKernel<T>);
  });
}

}  // namespace mydist::cuda
