#include "controller/pending_slots.h"

#include <algorithm>

#include "base/check.h"

namespace mydist {

PendingSlots::PendingSlots(size_t lane_count)
    : lane_count_(lane_count), stride_((lane_count + 63) / 64) {}

PendingSlots::Mark PendingSlots::Add(uint32_t slot, size_t lane) {
  Open(slot);
  const uint64_t bit = uint64_t{1} << (lane % 64);
  if (Word(slot, lane) & bit) return Mark::kDuplicate;
  Word(slot, lane) |= bit;
  if (++slots_[slot].ready_count < lane_count_) return Mark::kWaiting;
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
