// TimelineRelay: carries recorded events to the one timeline file: rank 0 writes, the others send.
// Owned by the engine, called by the thread that drives it; never blocks on the disk or the
// network. A timeline that cannot be written is one warning, training goes on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "controller/coordinator.h"
#include "timeline/event.h"
#include "timeline/trace_writer.h"
#include "world/topology.h"

namespace mydist {

// ClockOffset: how far a peer's monotonic clock is from ours, learnt from its messages. Pure.
// One per peer, owned by the relay of rank 0.
// A message cannot arrive before it was sent, so every one bounds the offset from above; the
// fastest message is nearest to the truth, wrong by its travel time only. Ranks of our own host
// share our clock: their offset is 0 and needs no estimate.
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

class TimelineRelay {
 public:
  // All outlive the relay.
  TimelineRelay(const Topology* topology, Timeline* timeline, Coordinator* coordinator);

  // Rank 0: opens the file. False, with a warning in the log, when that fails.
  bool Open(const std::string& path);

  void Start(bool mark_cycles);
  // Carries off what is recorded so far.
  void CarryOff();
  // Carries off what is left. The file stays open for blocks still on their way.
  void Stop();
  // Rank 0: waits until all events that have arrived are in the file. A slow disk may take long.
  void AwaitFile();

  // When Flush should be called next; kNever when there is nothing to carry off.
  TimePoint NextFlush();
  // Carries off events when they are due, and writes what peers have sent.
  void Flush(TimePoint now);
  // This rank records nothing more: carries everything off and marks the end for rank 0.
  void Finish();
  // Rank 0: whether the end of every other rank has arrived, or there is nothing to wait for.
  bool AllFinished() const;
  // Rank 0: completes the file.
  void Close();

 private:
  void WriteIncoming();

  const Topology& topology_;
  Timeline& timeline_;
  Coordinator& coordinator_;
  std::unique_ptr<TraceWriter> writer_;  // Rank 0 while a file is open.
  std::vector<ClockOffset> offsets_;     // Rank 0, by rank.
  int finished_count_ = 0;
};

}  // namespace mydist
