#include "controller/response_cache.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace mydist {

ResponseCache::ResponseCache(int64_t capacity)
    : capacity_(std::clamp<int64_t>(capacity, 0, kMaxCacheSlots)) {}

std::optional<uint32_t> ResponseCache::Find(std::string_view name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return std::nullopt;
  return it->second;
}

const std::shared_ptr<const Agreement>& ResponseCache::At(uint32_t slot) const {
  static const std::shared_ptr<const Agreement> kNone;
  return slot < slots_.size() ? slots_[slot].agreement : kNone;
}

uint64_t ResponseCache::ChangedAt(uint32_t slot) const {
  MYDIST_CHECK(slot < slot_count());
  return slot < slots_.size() ? slots_[slot].changed_at : 0;
}

std::optional<uint32_t> ResponseCache::SlotFor(std::string_view name) const {
  if (capacity_ == 0) return std::nullopt;
  if (const auto slot = Find(name)) return slot;
  if (!freed_.empty()) return *freed_.begin();
  if (static_cast<int64_t>(slots_.size()) < capacity_) return static_cast<uint32_t>(slots_.size());
  return by_use_.front();
}

void ResponseCache::Assign(uint32_t slot, std::shared_ptr<const Agreement> agreement,
                           uint64_t position) {
  MYDIST_CHECK(slot <= slots_.size() && slot < slot_count() && agreement != nullptr);
  if (slot == slots_.size()) {
    slots_.emplace_back();
  } else if (slots_[slot].agreement != nullptr) {
    Free(slot, position);
  }
  freed_.erase(slot);
  Slot& entry = slots_[slot];
  entry.agreement = std::move(agreement);
  entry.changed_at = position;
  entry.use = by_use_.insert(by_use_.end(), slot);
  by_name_[entry.agreement->request.name] = slot;
}

void ResponseCache::Touch(uint32_t slot) {
  MYDIST_CHECK(At(slot) != nullptr);
  by_use_.splice(by_use_.end(), by_use_, slots_[slot].use);
}

void ResponseCache::Free(uint32_t slot, uint64_t position) {
  MYDIST_CHECK(At(slot) != nullptr);
  Slot& entry = slots_[slot];
  by_name_.erase(entry.agreement->request.name);
  by_use_.erase(entry.use);
  entry.agreement = nullptr;
  entry.changed_at = position;
  freed_.insert(slot);
}

std::vector<uint32_t> ResponseCache::Where(
    const std::function<bool(const Agreement&)>& property) const {
  std::vector<uint32_t> found;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const auto& agreement = slots_[slot].agreement;
    if (agreement != nullptr && property(*agreement)) found.push_back(slot);
  }
  return found;
}

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
