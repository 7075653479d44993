#include "lanes/lane_call.h"

#include <algorithm>
#include <bit>
#include <span>

namespace mydist {
namespace {

// One round of splitmix64: all bits of the result depend on all bits of both.
uint64_t Mixed(uint64_t state, uint64_t value) {
  uint64_t bits = state + value + 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

// For bytes from one member to another.
uint64_t TransferNumber(size_t from, size_t to, int64_t bytes) {
  if (bytes == 0) return 0;
  return Mixed(Mixed(Mixed(0, from), to), static_cast<uint64_t>(bytes));
}

// "8, 16 bytes": of the first members, as messages have little room.
std::string BytesText(std::span<const int64_t> bytes) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(bytes.size(), kMost); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(bytes[i]);
  }
  return text + (bytes.size() > kMost ? ", ... bytes" : " bytes");
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
  state = Mixed(state, static_cast<uint64_t>(pieces));
  for (const char letter : parts) state = Mixed(state, static_cast<uint64_t>(letter));
  for (const char letter : layout) state = Mixed(state, static_cast<uint64_t>(letter));
  return state;
}

uint64_t LaneCall::Balance(int rank) const {
  const auto own = static_cast<size_t>(rank);
  uint64_t sum = 0;
  for (size_t peer = 0; peer < sends.size(); ++peer) {
    sum += TransferNumber(own, peer, sends[peer]);
  }
  for (size_t peer = 0; peer < receives.size(); ++peer) {
    sum -= TransferNumber(peer, own, receives[peer]);
  }
  return sum;
}

std::string LaneCall::ToText() const {
  std::string text(OpKindName(op));
  if (pieces != 1) text += " of " + std::to_string(pieces) + " tensors";
  if (HasData(op)) {
    text += count < 0 ? " of " : " of " + std::to_string(count) + " ";
    text += DataTypeName(dtype);
  }
  if (!parts.empty()) text += " in parts of " + parts;
  if (!layout.empty()) text += ", " + layout;
  if (Reduces(op)) text += ", " + ReductionText(*this);
  if (factor != 1.0) text += " after multiplying by " + std::to_string(factor);
  if (root >= 0) text += ", root " + std::to_string(root);
  if (!sends.empty()) text += ", sends " + BytesText(sends);
  if (!receives.empty()) text += ", receives " + BytesText(receives);
  return text;
}

}  // namespace mydist
