// Request: what one rank says about one tensor it has enqueued. Pure data.
// Ranks agree on a tensor when their requests match in everything but what the op lets differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/export.h"
#include "base/shape.h"
#include "world/collective_op.h"
#include "world/process_set.h"

namespace mydist {

inline constexpr int32_t kCpuDevice = -1;

struct MYDIST_EXPORT Request {
  std::string name;  // Unique among the tensors in flight of its process set.
  OpKind op = OpKind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  Shape shape;
  ReduceOp reduce_op = ReduceOp::kSum;  // Of what Reduces(op).
  int32_t root_rank = -1;               // Of what HasRoot(op); a global rank.
  double prescale = 1.0;                // Factors applied before and after the reduction.
  double postscale = 1.0;
  ProcessSetId process_set = kGlobalProcessSet;
  int32_t device = kCpuDevice;  // kCpuDevice, or the GPU's index.
  // Members of a group become ready, execute and fail together. Empty: no group.
  std::string group;
  int32_t group_size = 0;
  // Global ranks. kSendReceive: the sender, then the receiver; nobody else takes part.
  // kAddProcessSet: of the new set, ascending. Else empty.
  std::vector<int32_t> ranks;

  bool operator==(const Request&) const = default;
};

// Whether this rank of the request's process set has to be ready for it.
bool TakesPart(const Request& request, int32_t rank);

// Whether an agreement on it gets a cache slot. Not what happens once under its name.
bool IsCacheable(OpKind op);

// Whether the first dimension may differ from rank to rank.
bool FirstDimMayDiffer(OpKind op);  // allgather, alltoall, gather, scatter

// Whether two ranks' requests for the same name agree.
bool Agree(const Request& a, const Request& b);

}  // namespace mydist
