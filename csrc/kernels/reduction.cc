#include "kernels/reduction.h"

#include <string>

#include "base/status.h"
#include "kernels/simd/simd_path.h"

namespace mydist {

Reduction Reduction::Resolved(int size) const {
  Reduction resolved = *this;
  if (op == ReduceOp::kAverage) {
    resolved.op = ReduceOp::kSum;
    resolved.divisor = divisor * size;
  }
  return resolved;
}

Status Reduction::Validate() const {
  const std::string dtype_name(DataTypeName(dtype));
  if (!HasMeaning(op, dtype)) {
    return Status::InvalidArgument("reduce op " + std::string(ReduceOpName(op)) +
                                   " has no meaning for dtype " + dtype_name +
                                   "; use another op or convert the tensor first");
  }
  if (dtype == DataType::kBool && (ScalesBefore() || ScalesAfter())) {
    return Status::InvalidArgument(
        "a bool tensor cannot be scaled: got prescale " + std::to_string(prescale) +
        " and postscale " + std::to_string(postscale) +
        ", expected 1 for both; leave the factors out, or convert the tensor first");
  }
  return Status::Ok();
}

Status Reduction::ValidateFor(OpKind operation) const {
  if (op == ReduceOp::kAdasum && operation != OpKind::kAllreduce) {
    return Status::InvalidArgument("reduce op Adasum works with allreduce only, got " +
                                   std::string(OpKindName(operation)) +
                                   "; call allreduce, or use Average or Sum");
  }
  return Validate();
}

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
