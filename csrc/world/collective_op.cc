#include "world/collective_op.h"

#include <array>

namespace mydist {
namespace {

constexpr std::array<std::string_view, kOpKindCount> kOpKindNames = {
    "allreduce", "allgather", "broadcast", "alltoall",  "reducescatter",   "barrier",
    "reduce",    "gather",    "scatter",   "send/recv", "add_process_set", "remove_process_set"};
constexpr std::array<std::string_view, kReduceOpCount> kReduceOpNames = {
    "Average", "Sum", "Min", "Max", "Product", "Adasum"};

}  // namespace

std::string_view OpKindName(OpKind op) { return kOpKindNames[static_cast<size_t>(op)]; }
std::string_view ReduceOpName(ReduceOp op) { return kReduceOpNames[static_cast<size_t>(op)]; }

std::optional<OpKind> OpKindFromWire(uint8_t number) {
  if (number >= kOpKindCount) return std::nullopt;
  return static_cast<OpKind>(number);
}

std::optional<ReduceOp> ReduceOpFromWire(uint8_t number) {
  if (number >= kReduceOpCount) return std::nullopt;
  return static_cast<ReduceOp>(number);
}

bool HasMeaning(ReduceOp op, DataType dtype) {
  if (IsFloat8(dtype)) return false;
  switch (op) {
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !IsComplex(dtype);
    case ReduceOp::kAverage:
      return dtype != DataType::kBool;
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return true;
    case ReduceOp::kAdasum:
      return IsFloatingPoint(dtype);
  }
  return false;
}

}  // namespace mydist
