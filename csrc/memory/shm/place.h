// Place: where memory of a rank lies, in words its peers understand. Travels in the posts of
// SlotSteps, so whoever reads one checks it.
#pragma once

#include <cstdint>
#include <type_traits>

namespace mydist::shm {

enum class PlaceKind : uint8_t {
  kUnreachable = 0,  // Only its owner can read it.
  kSlot,             // It has been copied into the slot of this step.
  kHeap,             // `position`: offset in the owner's zone of the heap.
  kPrivate,          // `position`: address in the owner's process.
};

struct Place {
  PlaceKind kind = PlaceKind::kUnreachable;
  int64_t position = 0;

  // `bytes` further on.
  Place At(int64_t bytes) const { return {kind, position + bytes}; }
};

// What a post of a collective that works on tensors in place says.
struct PlaceMessage {
  Place input;
  Place output;
};

static_assert(std::is_trivially_copyable_v<PlaceMessage>);

}  // namespace mydist::shm
