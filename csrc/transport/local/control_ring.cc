#include "transport/local/control_ring.h"

#include <algorithm>
#include <atomic>
#include <string>

namespace mydist::local {

size_t RingWriter::Room() const {
  const uint64_t used = put_ - theirs_->consumed.load(std::memory_order_acquire);
  return used > ring_.size() ? 0 : ring_.size() - used;
}

size_t RingWriter::Put(std::span<const uint8_t> bytes) {
  const size_t count = std::min(bytes.size(), Room());
  const size_t begin = put_ % ring_.size();
  const size_t first = std::min(count, ring_.size() - begin);
  std::copy_n(bytes.begin(), first, ring_.begin() + static_cast<ptrdiff_t>(begin));
  std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(first), count - first, ring_.begin());
  put_ += count;
  return count;
}

// The fence orders this before the next look at the room; Release has its counterpart.
void RingWriter::WantRoom(bool wants) {
  own_->wants_room.store(wants ? 1 : 0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

Result<size_t> RingReader::Available() const {
  const uint64_t available = theirs_->produced.load(std::memory_order_acquire) - taken_;
  if (available <= ring_.size()) return static_cast<size_t>(available);
  return Status::Internal("wrote " + std::to_string(available) +
                          " bytes to a ring of shared memory, expected at most " +
                          std::to_string(ring_.size()));
}

void RingReader::Take(std::span<uint8_t> into) {
  const size_t begin = taken_ % ring_.size();
  const size_t first = std::min(into.size(), ring_.size() - begin);
  std::copy_n(ring_.begin() + static_cast<ptrdiff_t>(begin), first, into.begin());
  std::copy_n(ring_.begin(), into.size() - first, into.begin() + static_cast<ptrdiff_t>(first));
  taken_ += into.size();
}

bool RingReader::Release() {
  own_->consumed.store(taken_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return theirs_->wants_room.load(std::memory_order_relaxed) != 0;
}

}  // namespace mydist::local
