// LaneCall: what all members of a lane must submit alike. Pure data.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/export.h"
#include "world/collective_op.h"

namespace mydist {

// What combines integers bit by bit, in place of a ReduceOp.
enum class Bitwise : uint8_t { kNone = 0, kAnd = 1, kOr = 2, kXor = 3 };

struct MYDIST_EXPORT LaneCall {
  OpKind op = OpKind::kBarrier;
  DataType dtype = DataType::kUint8;
  int64_t count = -1;  // Elements of each member's tensor; -1: may differ between members.
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = -1;        // An index in the group; -1: the operation has none.
  double factor = 1.0;  // Before the reduction.
  int64_t pieces = 1;   // Tensors that are one operation.
  Bitwise bitwise = Bitwise::kNone;

  bool operator==(const LaneCall&) const = default;

  // Equal calls have equal numbers; others have different ones, but for one pair in 2^64.
  uint64_t Fingerprint() const;
  // "allreduce of 4 float32, Sum".
  std::string ToText() const;
};

}  // namespace mydist
