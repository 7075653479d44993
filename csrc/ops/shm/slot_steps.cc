#include "ops/shm/slot_steps.h"

namespace mydist::shm {

SlotSteps::SlotSteps(Arena* arena, Waiter* waiter)
    : arena_(arena),
      waiter_(waiter),
      index_(arena->index()),
      posted_(static_cast<size_t>(arena->size())),
      halves_(static_cast<size_t>(arena->size())) {
  for (auto& readers : readers_) readers.resize(static_cast<size_t>(arena->size()));
}

bool SlotSteps::IsRead(int peer) const {
  return arena_->pair(peer, index_).done.load(std::memory_order_acquire) >=
         readers_[half_][static_cast<size_t>(peer)];
}

Result<uint8_t*> SlotSteps::Begin() {
  half_ = 1 - half_;
  halves_[static_cast<size_t>(index_)] = static_cast<int>(half_);
  for (int peer = 0; peer < arena_->size(); ++peer) {
    if (readers_[half_][static_cast<size_t>(peer)] == 0 || IsRead(peer)) continue;
    MYDIST_RETURN_IF_ERROR(waiter_->Await({{&peer, 1}, {&peer, 1}}, [&] { return IsRead(peer); }));
  }
  return arena_->slot(index_, static_cast<int>(half_));
}

Status SlotSteps::Publish(std::span<const int> peers) {
  for (const int peer : peers) {
    PairLine& line = arena_->pair(index_, peer);
    const uint64_t step = ++posted_[static_cast<size_t>(peer)];
    line.half[step % 2].store(static_cast<uint8_t>(half_), std::memory_order_relaxed);
    line.posted.store(step, std::memory_order_release);
  }
  waiter_->Ring(peers);
  for (const int peer : peers) {
    const PairLine& line = arena_->pair(peer, index_);
    const uint64_t step = posted_[static_cast<size_t>(peer)];
    MYDIST_RETURN_IF_ERROR(waiter_->Await(
        {peers, {&peer, 1}}, [&] { return line.posted.load(std::memory_order_acquire) >= step; }));
    halves_[static_cast<size_t>(peer)] = line.half[step % 2].load(std::memory_order_relaxed) % 2;
  }
  return Status::Ok();
}

void SlotSteps::Finish(std::span<const int> peers) {
  for (const int peer : peers) {
    const uint64_t step = posted_[static_cast<size_t>(peer)];
    arena_->pair(index_, peer).done.store(step, std::memory_order_release);
    readers_[half_][static_cast<size_t>(peer)] = step;
  }
  waiter_->Ring(peers);
}

}  // namespace mydist::shm
