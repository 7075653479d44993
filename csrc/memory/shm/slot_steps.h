// SlotSteps: the step that collectives in shared memory are made of: publish a message to each peer
// and await theirs. A step may also hand over the slot: begin, fill it, publish, read the peers',
// finish. Owned by the ShmPort, which all process sets share; used by whoever drives the engine.
// Peers are indices in the arena. All members of a set take the same steps, each naming the others;
// two ranks take the steps they share in the same order.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/status.h"
#include "memory/shm/arena.h"
#include "memory/shm/waiter.h"

namespace mydist::shm {

class SlotSteps {
 public:
  // Both outlive this object.
  SlotSteps(Arena* arena, Waiter* waiter);

  // Room for one step of any set.
  int64_t slot_bytes() const { return arena_->layout().slot_bytes(); }

  // The own slot, to be filled. Waits for whoever still reads what it held two steps ago.
  // kPeerLost.
  Result<uint8_t*> Begin();
  // Shows the slot to `peers` and waits for theirs; kPeerLost.
  Status Publish(std::span<const int> peers) { return Publish(peers, nullptr, 0); }
  // With `message_bytes` (at most kMessageBytes) of message to everybody.
  Status Publish(std::span<const int> peers, const void* message, int64_t message_bytes) {
    return PublishEach(peers, [&](int, uint8_t* room) {
      if (message_bytes > 0) std::memcpy(room, message, static_cast<size_t>(message_bytes));
    });
  }
  // fill(peer, room) writes the message to each peer.
  template <typename Fill>
  Status PublishEach(std::span<const int> peers, Fill fill) {
    for (const int peer : peers) {
      const uint64_t step = ++posted_[static_cast<size_t>(peer)];
      PostLine& post = arena_->pair(index_, peer).posts[step % 2];
      fill(peer, post.message.data());
      post.half = static_cast<uint8_t>(half_);
      post.step.store(step, std::memory_order_release);
    }
    waiter_->Ring(peers);
    return AwaitPosts(peers);
  }
  // After Publish, and until the next one that names `peer`: its message.
  const uint8_t* MessageOf(int peer) const {
    return arena_->pair(peer, index_).posts[posted_[static_cast<size_t>(peer)] % 2].message.data();
  }
  // After Publish, what the peer has published; own: what we have. Until Finish, or, where all that
  // is read is also written, until the next Publish.
  uint8_t* SlotOf(int rank) const { return arena_->slot(rank, halves_[static_cast<size_t>(rank)]); }
  // After an error, when this rank has left: waits until each of `peers` has posted `more_steps`
  // beyond the last step posted to it, or is gone; kQuietLimit at most, since it may be stopped,
  // and only a moment when it has been waited for in vain already: then late writes are to be
  // expected (world/late_writes.h).
  void AwaitQuiet(std::span<const int> peers, uint64_t more_steps, const Status& error);
  // The slots of `peers` have been read.
  void Finish(std::span<const int> peers);

 private:
  static constexpr std::chrono::seconds kQuietLimit{2};
  static constexpr std::chrono::milliseconds kShortQuietLimit{50};

  Status AwaitPosts(std::span<const int> peers);
  bool IsRead(int peer) const;

  Arena* const arena_;
  Waiter* const waiter_;
  const int index_;
  size_t half_ = 0;               // Of the own slot that the step in progress uses.
  std::vector<uint64_t> posted_;  // Steps shared with each peer.
  std::vector<uint64_t> seen_;    // Of them, those the peer is known to have posted.
  std::vector<int> halves_;       // Which half of each rank's slot the step in progress reads.
  // For each half of the own slot, who has read it, and at which step shared with them.
  std::array<std::vector<uint64_t>, 2> readers_;
};

}  // namespace mydist::shm
