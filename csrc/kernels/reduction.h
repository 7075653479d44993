// Reduction: how the contributions of all ranks become one result. Pure data.
// result = op over ranks r of (x_r × prescale), host by host, those of a host in rank order, then ×
// postscale ÷ divisor. Agreed on by all ranks before anything is reduced.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/export.h"
#include "base/status.h"
#include "world/collective_op.h"

namespace mydist {

struct MYDIST_EXPORT Reduction {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  // What an average divides by; kept apart from postscale because x ÷ 49 is exact where
  // x × (1 ÷ 49) is not, and integers truncate.
  int64_t divisor = 1;

  bool ScalesBefore() const { return prescale != 1.0; }
  bool ScalesAfter() const { return postscale != 1.0 || divisor != 1; }

  // kAverage over `size` ranks becomes a sum with a divisor; every other op stays as it is.
  Reduction Resolved(int size) const;

  // kInvalidArgument when `op` has no meaning for `dtype` or a bool is to be scaled.
  Status Validate() const;
  // Also when `operation` cannot reduce by `op`: Adasum is an allreduce.
  Status ValidateFor(OpKind operation) const;

  bool operator==(const Reduction&) const = default;
};

}  // namespace mydist
