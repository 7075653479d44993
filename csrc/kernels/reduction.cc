#include "kernels/reduction.h"

#include <string>

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
        ", expected 1 for both; leave the factors away or convert the tensor first");
  }
  return Status::Ok();
}

Status Reduction::ValidateFor(OpKind operation) const {
  if (op == ReduceOp::kAdasum && operation != OpKind::kAllreduce) {
    return Status::InvalidArgument("reduce op Adasum is an allreduce: got it for " +
                                   std::string(OpKindName(operation)) +
                                   ", expected allreduce; call allreduce, or use Average or Sum");
  }
  return Validate();
}

}  // namespace mydist
