#include "lanes/lane_call.h"

#include <bit>

namespace mydist {
namespace {

// One round of splitmix64: all bits of the result depend on all bits of both.
uint64_t Mixed(uint64_t state, uint64_t value) {
  uint64_t bits = state + value + 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

std::string ReductionText(const LaneCall& call) {
  switch (call.bitwise) {
    case Bitwise::kAnd:
      return "bitwise and";
    case Bitwise::kOr:
      return "bitwise or";
    case Bitwise::kXor:
      return "bitwise xor";
    case Bitwise::kNone:
      break;
  }
  return std::string(ReduceOpName(call.reduce_op));
}

}  // namespace

uint64_t LaneCall::Fingerprint() const {
  const uint64_t small = static_cast<uint64_t>(bitwise) << 24 | static_cast<uint64_t>(op) << 16 |
                         static_cast<uint64_t>(dtype) << 8 | static_cast<uint64_t>(reduce_op);
  uint64_t state = Mixed(small, static_cast<uint64_t>(count));
  state = Mixed(state, static_cast<uint64_t>(root));
  state = Mixed(state, std::bit_cast<uint64_t>(factor));
  return Mixed(state, static_cast<uint64_t>(pieces));
}

std::string LaneCall::ToText() const {
  std::string text(OpKindName(op));
  if (pieces != 1) text += " of " + std::to_string(pieces) + " tensors";
  if (HasData(op)) {
    text += count < 0 ? " of " : " of " + std::to_string(count) + " ";
    text += DataTypeName(dtype);
  }
  if (Reduces(op)) text += ", " + ReductionText(*this);
  if (factor != 1.0) text += " after multiplying by " + std::to_string(factor);
  if (root >= 0) text += ", root " + std::to_string(root);
  return text;
}

}  // namespace mydist
