// ResponseCache: agreements that get a slot number, so that readiness becomes one bit. Pure.
// Owned by the Negotiator of one process set. A function of the stream alone, hence equal on all
// ranks at the same stream position. Ready tensors are touched in stream order; when all slots are
// taken the one least recently touched is evicted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "controller/messages/response.h"

namespace mydist {

inline constexpr int64_t kMaxCacheSlots = int64_t{1} << 20;

class ResponseCache {
 public:
  // Slots 0 … capacity-1, capped at kMaxCacheSlots; 0 or less caches nothing.
  explicit ResponseCache(int64_t capacity);

  std::optional<uint32_t> Find(std::string_view name) const;
  // Null for a free slot and for a number that is none.
  const std::shared_ptr<const Agreement>& At(uint32_t slot) const;
  // Stream position at which the slot was last assigned or freed; 0: never. `slot` < slot_count().
  uint64_t ChangedAt(uint32_t slot) const;
  uint32_t slot_count() const { return static_cast<uint32_t>(capacity_); }

  // The slot that takes the agreement: that of its name, else the lowest free one, else the one
  // least recently touched. Nothing when no slot can be had. Follow with Assign.
  std::optional<uint32_t> SlotFor(std::string_view name) const;
  void Assign(uint32_t slot, std::shared_ptr<const Agreement> agreement, uint64_t position);
  void Touch(uint32_t slot);
  void Free(uint32_t slot, uint64_t position);
  // Slots whose agreement has the property, ascending.
  std::vector<uint32_t> Where(const std::function<bool(const Agreement&)>& property) const;

 private:
  struct Slot {
    std::shared_ptr<const Agreement> agreement;
    uint64_t changed_at = 0;
    std::list<uint32_t>::iterator use;  // Into by_use_; valid while occupied.
  };

  const int64_t capacity_;
  std::vector<Slot> slots_;     // Grows to capacity_ as slots are first used.
  std::set<uint32_t> freed_;    // Free slots below slots_.size().
  std::list<uint32_t> by_use_;  // Least recently touched first.
  std::unordered_map<std::string_view, uint32_t> by_name_;  // Keys live in the agreements.
};

// PendingSlots: for each cached tensor, which lanes of this vertex are ready for it. Pure.
// Owned by the Negotiator; one bit per slot and lane, nothing allocated in the steady state.
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
