#include "kernels/reduce_kernels.h"

#include "base/check.h"
#include "kernels/simd/simd_path.h"

namespace mydist {

void ReduceInRankOrder(std::span<const void* const> sources, std::span<void* const> outputs,
                       int64_t count, const Reduction& reduction, Stores stores) {
  MYDIST_CHECK(!sources.empty());
  MYDIST_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  MYDIST_CHECK(HasMeaning(reduction.op, reduction.dtype));
  if (count == 0) return;
  simd::FoldCall call = {.sources = sources.data(),
                         .source_count = sources.size(),
                         .outputs = outputs.data(),
                         .output_count = outputs.size(),
                         .count = count,
                         .dtype = reduction.dtype,
                         .op = reduction.op,
                         .prescale = reduction.prescale,
                         .postscale = reduction.postscale,
                         .divisor = reduction.divisor,
                         .streams = stores == Stores::kStreaming};
  if (sources.size() == 1 && !reduction.ScalesBefore() && !reduction.ScalesAfter()) {
    call.count = count * SizeOf(reduction.dtype);
    call.dtype = DataType::kUint8;
  }
  simd::CurrentKernels().fold(call);
}

void ReduceInRankOrder(std::span<const void* const> sources, void* output, int64_t count,
                       const Reduction& reduction) {
  ReduceInRankOrder(sources, std::span(&output, 1), count, reduction);
}

}  // namespace mydist
