// What a collective does: the vocabulary shared by controller (agreeing) and ops (reducing).
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
};
inline constexpr int kOpKindCount = 6;

enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
};
inline constexpr int kReduceOpCount = 5;

MYDIST_EXPORT std::string_view OpKindName(OpKind op);      // "allreduce"
MYDIST_EXPORT std::string_view ReduceOpName(ReduceOp op);  // "Average"
MYDIST_EXPORT std::optional<OpKind> OpKindFromWire(uint8_t number);
MYDIST_EXPORT std::optional<ReduceOp> ReduceOpFromWire(uint8_t number);

inline bool Reduces(OpKind op) { return op == OpKind::kAllreduce || op == OpKind::kReducescatter; }

// Whether `op` has a meaning for `dtype`: Min/Max need an order (not complex), Average a division
// (not bool). For bool, Sum and Max are logical or, Product and Min logical and.
MYDIST_EXPORT bool HasMeaning(ReduceOp op, DataType dtype);

}  // namespace mydist
