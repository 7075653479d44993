#include "controller/pending_slots.h"

#include <algorithm>

#include "base/check.h"

namespace mydist {

PendingSlots::PendingSlots(size_t lane_count) : stride_((lane_count + 63) / 64), active_(stride_) {
  for (size_t lane = 0; lane < lane_count; ++lane) SetActive(lane, true);
}

void PendingSlots::SetActive(size_t lane, bool active) {
  const uint64_t bit = uint64_t{1} << (lane % 64);
  uint64_t& word = active_[lane / 64];
  word = active ? word | bit : word & ~bit;
}

bool PendingSlots::IsComplete(uint32_t slot) const {
  uint64_t ready = 0;
  for (size_t i = 0; i < stride_; ++i) {
    const uint64_t word = words_[slot * stride_ + i];
    if ((word & active_[i]) != active_[i]) return false;
    ready |= word;
  }
  return ready != 0;
}

std::vector<uint32_t> PendingSlots::CompleteSlots() const {
  std::vector<uint32_t> complete;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].open && IsComplete(slot)) complete.push_back(slot);
  }
  return complete;
}

PendingSlots::Mark PendingSlots::Add(uint32_t slot, size_t lane) {
  Open(slot);
  const uint64_t bit = uint64_t{1} << (lane % 64);
  if (Word(slot, lane) & bit) return Mark::kDuplicate;
  Word(slot, lane) |= bit;
  if (!IsComplete(slot)) return Mark::kWaiting;
  Drop(slot);
  return Mark::kComplete;
}

void PendingSlots::Open(uint32_t slot) {
  Reserve(slot);
  slots_[slot].open = true;
}

bool PendingSlots::IsOpen(uint32_t slot) const { return slot < slots_.size() && slots_[slot].open; }

bool PendingSlots::Has(uint32_t slot, size_t lane) const {
  return IsOpen(slot) && ((words_[slot * stride_ + lane / 64] >> (lane % 64)) & 1u);
}

void PendingSlots::Drop(uint32_t slot) {
  if (slot >= slots_.size()) return;
  slots_[slot] = {};
  std::fill_n(words_.begin() + static_cast<std::ptrdiff_t>(slot * stride_), stride_, 0);
}

void PendingSlots::Clear() {
  slots_.clear();
  words_.clear();
}

void PendingSlots::set_wait(uint32_t slot, uint64_t wait) {
  MYDIST_CHECK(IsOpen(slot));
  slots_[slot].wait = wait;
}

void PendingSlots::Reserve(uint32_t slot) {
  if (slot < slots_.size()) return;
  slots_.resize(slot + size_t{1});
  words_.resize(slots_.size() * stride_);
}

}  // namespace mydist
