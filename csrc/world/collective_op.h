// What a collective does: the vocabulary shared by controller (agreeing) and algorithms (reducing).
// The numbers are part of the wire format and of the Python API.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/dtype.h"
#include "base/export.h"

namespace mydist {

enum class OpKind : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
  kReduce = 6,
  kGather = 7,
  kScatter = 8,
  kSendReceive = 9,     // Between two ranks of the set: Request::ranks.
  kAddProcessSet = 10,  // Moves no data; of all ranks of the job.
  kRemoveProcessSet = 11,
};
inline constexpr int kOpKindCount = 12;

enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kAdasum = 5,
};
inline constexpr int kReduceOpCount = 6;

MYDIST_EXPORT std::string_view OpKindName(OpKind op);      // "allreduce"
MYDIST_EXPORT std::string_view ReduceOpName(ReduceOp op);  // "Average"
MYDIST_EXPORT std::optional<OpKind> OpKindFromWire(uint8_t number);
MYDIST_EXPORT std::optional<ReduceOp> ReduceOpFromWire(uint8_t number);

inline bool Reduces(OpKind op) {
  return op == OpKind::kAllreduce || op == OpKind::kReducescatter || op == OpKind::kReduce;
}

// Whether one rank, Request::root_rank, gives or gets what the others do not.
inline bool HasRoot(OpKind op) {
  return op == OpKind::kBroadcast || op == OpKind::kReduce || op == OpKind::kGather ||
         op == OpKind::kScatter;
}

// Whether the ranks have to know how many rows each of them contributes.
inline bool GathersRows(OpKind op) { return op == OpKind::kAllgather || op == OpKind::kGather; }

// Whether it moves or reduces tensors at all.
inline bool HasData(OpKind op) {
  return op != OpKind::kBarrier && op != OpKind::kAddProcessSet && op != OpKind::kRemoveProcessSet;
}

inline bool ChangesProcessSets(OpKind op) {
  return op == OpKind::kAddProcessSet || op == OpKind::kRemoveProcessSet;
}

// Whether `op` has a meaning for `dtype`: Min/Max need an order (not complex), Average a division
// (not bool), Adasum real floating point; floats of 8 bits are not reduced at all. For bool, Sum
// and Max are logical or, Product and Min logical and.
MYDIST_EXPORT bool HasMeaning(ReduceOp op, DataType dtype);

// Carrier: what stands for one element in the memory that a collective reads and writes.

struct Carrier {
  DataType dtype = DataType::kFloat32;
  int64_t count = 1;  // Numbers of that type, side by side.

  int64_t bytes() const { return count * SizeOf(dtype); }
};

// An average of integers travels as a sum of int64, which cannot wrap; the caller scales and
// divides. An int64 is two numbers: its upper 32 bits with the sign, then its lower 32 bits.
inline bool IsIntegerAverage(OpKind op, ReduceOp reduce_op, DataType dtype) {
  return Reduces(op) && reduce_op == ReduceOp::kAverage && IsInteger(dtype);
}

}  // namespace mydist
