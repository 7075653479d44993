// ClockOffset: how far a peer's monotonic clock is from ours, learnt from its messages. Pure.
// One per peer, owned by whoever receives that peer's event blocks on rank 0.
// A message cannot arrive before it was sent, so every one bounds the offset from above; the
// fastest message is nearest to the truth, wrong by its travel time only. Ranks of our own host
// share our clock: their offset is 0 and needs no estimate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace mydist {

class ClockOffset {
 public:
  // A message that left at `sent_ns` (peer's clock) was here at `received_ns` (our clock).
  void Observe(int64_t sent_ns, int64_t received_ns) {
    // As unsigned: sent_ns is the peer's word and may be anything.
    const auto offset_ns =
        static_cast<int64_t>(static_cast<uint64_t>(received_ns) - static_cast<uint64_t>(sent_ns));
    offset_ns_ = std::min(offset_ns_.value_or(offset_ns), offset_ns);
  }

  // To add to the peer's times; 0 before the first message.
  int64_t offset_ns() const { return offset_ns_.value_or(0); }

 private:
  std::optional<int64_t> offset_ns_;
};

}  // namespace mydist
