// PendingSlots: for each cached tensor, which lanes of this vertex are ready for it. Pure.
// Owned by the Negotiator; one bit per slot and lane, nothing allocated in the steady state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mydist {

class PendingSlots {
 public:
  explicit PendingSlots(size_t lane_count);

  enum class Mark { kWaiting, kComplete, kDuplicate };
  // A lane is ready. When all active ones are, the slot is forgotten and kComplete returned.
  Mark Add(uint32_t slot, size_t lane);
  // Whether the lane is waited for; at first all are. See CompleteSlots.
  void SetActive(size_t lane, bool active);
  // Slots that some lane is ready for and that no active lane is waited for any more.
  std::vector<uint32_t> CompleteSlots() const;
  // Begins waiting though no lane is ready, when nothing waits yet.
  void Open(uint32_t slot);

  bool IsOpen(uint32_t slot) const;
  bool Has(uint32_t slot, size_t lane) const;
  void Drop(uint32_t slot);  // Forgets what is known.
  void Clear();

  // The number of the wait at the stall inspector; 0 when there is none.
  uint64_t wait(uint32_t slot) const { return IsOpen(slot) ? slots_[slot].wait : 0; }
  void set_wait(uint32_t slot, uint64_t wait);

 private:
  struct Slot {
    bool open = false;
    uint64_t wait = 0;
  };

  void Reserve(uint32_t slot);
  bool IsComplete(uint32_t slot) const;
  uint64_t& Word(uint32_t slot, size_t lane) { return words_[slot * stride_ + lane / 64]; }

  const size_t stride_;           // Words per slot.
  std::vector<Slot> slots_;       // Grows to the highest slot used.
  std::vector<uint64_t> words_;   // Lane bits, stride_ words per slot.
  std::vector<uint64_t> active_;  // Lane bits.
};

}  // namespace mydist
