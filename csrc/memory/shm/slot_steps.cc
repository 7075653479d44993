#include "memory/shm/slot_steps.h"

#include "base/log.h"
#include "world/late_writes.h"

namespace mydist::shm {

SlotSteps::SlotSteps(Arena* arena, Waiter* waiter)
    : arena_(arena),
      waiter_(waiter),
      index_(arena->index()),
      posted_(static_cast<size_t>(arena->size())),
      seen_(static_cast<size_t>(arena->size())),
      halves_(static_cast<size_t>(arena->size())) {
  for (auto& readers : readers_) readers.resize(static_cast<size_t>(arena->size()));
}

// A peer that has posted a later step has finished that one; no need to look at another line.
bool SlotSteps::IsRead(int peer) const {
  const uint64_t step = readers_[half_][static_cast<size_t>(peer)];
  return seen_[static_cast<size_t>(peer)] > step ||
         arena_->pair(peer, index_).done.load(std::memory_order_acquire) >= step;
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

Status SlotSteps::AwaitPosts(std::span<const int> peers) {
  for (const int peer : peers) {
    const uint64_t step = posted_[static_cast<size_t>(peer)];
    const PostLine& post = arena_->pair(peer, index_).posts[step % 2];
    MYDIST_RETURN_IF_ERROR(waiter_->Await(
        {peers, {&peer, 1}}, [&] { return post.step.load(std::memory_order_acquire) >= step; }));
    seen_[static_cast<size_t>(peer)] = step;
    halves_[static_cast<size_t>(peer)] = post.half % 2;
  }
  return Status::Ok();
}

void SlotSteps::AwaitQuiet(std::span<const int> peers, uint64_t more_steps, const Status& error) {
  const bool is_late = error.code() == StatusCode::kTimeout;
  const TimePoint deadline = Now() + (is_late ? Duration(kShortQuietLimit) : Duration(kQuietLimit));
  for (const int peer : peers) {
    const uint64_t step = posted_[static_cast<size_t>(peer)] + more_steps;
    const PostLine& post = arena_->pair(peer, index_).posts[step % 2];
    const auto is_quiet = [&] { return post.step.load(std::memory_order_acquire) >= step; };
    const Status waited = waiter_->Await({{&peer, 1}, {&peer, 1}, /*is_watched=*/false},
                                         [&] { return is_quiet() || Now() >= deadline; });
    // One that is gone is as quiet as one that has come so far.
    if (!waited.ok() || is_quiet()) continue;
    ExpectLateWrites();
    MYDIST_LOG(kWarning) << "a collective failed while " << arena_->Name(peer)
                         << " does not respond. That rank may still write to the tensors, so their "
                            "memory is not reused before this process exits";
  }
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
