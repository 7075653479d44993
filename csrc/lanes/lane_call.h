// LaneCall: what the members of a lane must submit alike, or in agreement. Pure data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  std::string parts;   // "3 float32, 4 float64": of the count, where they are unequal.
  std::string layout;  // "sparse [10, 4] with 1 sparse dimension"; empty: dense.
  // Bytes for and from each member, which the others do not know; empty: none.
  std::vector<int64_t> sends;
  std::vector<int64_t> receives;

  bool operator==(const LaneCall&) const = default;

  // Equal calls have equal numbers; others have different ones, but for one pair in 2^64.
  uint64_t Fingerprint() const;
  // The sum over all members is zero when each receives as many bytes as are sent to it; otherwise
  // it is another, but for one case in 2^64. `rank`: the member's own.
  uint64_t Balance(int rank) const;
  // "allreduce of 4 float32, Sum".
  std::string ToText() const;
};

}  // namespace mydist
