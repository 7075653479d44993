// TimelineEvent: one thing that happened to one tensor (or to the engine) on one rank. Pure data.
// Recorded into the Timeline by callers' threads and the engine; ranks other than 0 send blocks of
// them to rank 0 over the control plane, whose TraceWriter puts them into the file.
// A block comes from a peer: the decoder checks every length and number before it uses it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"

namespace mydist {

enum class EventPhase : uint8_t {
  kBegin = 0,     // Something starts on the lane; nests inside what is open there.
  kEnd = 1,       // The innermost open event of the same name on the lane ends.
  kInstant = 2,   // Happened at time_ns, without a duration.
  kComplete = 3,  // Lasted from time_ns for duration_ns.
};
inline constexpr int kEventPhaseCount = 4;

// The names that all ranks and all readers of a timeline know.
namespace event_name {
inline constexpr std::string_view kEnqueue = "ENQUEUE";
inline constexpr std::string_view kNegotiate = "NEGOTIATE";
inline constexpr std::string_view kFuse = "FUSE";
inline constexpr std::string_view kComplete = "COMPLETE";
inline constexpr std::string_view kCycle = "CYCLE";
inline constexpr std::string_view kRound = "ROUND";  // Of a strategy.
}  // namespace event_name

// The lane of what belongs to no tensor.
inline constexpr std::string_view kCycleLane = "cycle";

struct MYDIST_EXPORT TimelineEvent {
  int64_t time_ns = 0;      // CLOCK_MONOTONIC of the recording rank.
  int64_t duration_ns = 0;  // kComplete only.
  EventPhase phase = EventPhase::kInstant;
  std::string lane;  // The tensor's name, or kCycleLane. Any bytes.
  std::string name;  // What happened: "NEGOTIATE", "ALLREDUCE", "MEMCPY_IN_FUSION_BUFFER" …
  std::string args;  // Free text shown with the event; often empty. Not needed on kEnd.

  bool operator==(const TimelineEvent&) const = default;
};

// What one rank sends to rank 0 at once.
struct MYDIST_EXPORT EventBlock {
  int64_t sent_ns = 0;        // CLOCK_MONOTONIC of the sender when it encoded the block.
  int64_t dropped_count = 0;  // Events the sender has dropped so far, in all.
  std::vector<TimelineEvent> events;

  bool operator==(const EventBlock&) const = default;
};

// Longer lanes, names and args are cut when encoded: a reader could not show them anyway.
inline constexpr size_t kMaxEventTextBytes = 1024;
// More than this of one block is not encoded but added to its dropped_count.
inline constexpr size_t kMaxBlockEventCount = size_t{64} << 10;
inline constexpr size_t kMaxEventBlockBytes = size_t{16} << 20;

// The block as bytes, little-endian; each distinct text is sent once per block.
MYDIST_EXPORT std::vector<uint8_t> EncodeEvents(const EventBlock& block);

// The block of some bytes. kInternal saying what is wrong and where when they are no such block;
// never crashes, and counts are checked against the bytes that are there before memory is taken.
MYDIST_EXPORT Result<EventBlock> DecodeEvents(const std::vector<uint8_t>& bytes);

// Timeline: the mailbox between the threads that record events and the engine that collects them.
// One of the three objects shared between threads: Record is called by callers' threads and by the
// engine, everything else by the engine; one Mutex, held for a few moves only, never for I/O.
// Bounded: when it is full, events are dropped and counted; recording never waits.
class MYDIST_EXPORT Timeline {
 public:
  static constexpr size_t kDefaultCapacity = size_t{64} << 10;
  // How long an event may wait to be carried off.
  static constexpr std::chrono::milliseconds kFlushInterval{200};

  explicit Timeline(size_t capacity = kDefaultCapacity) : capacity_(capacity) {}

  // Whether events are wanted now: one relaxed load, so that a job without a timeline pays nothing.
  // Callers ask before they build an event's texts.
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  // Whether engine cycles are wanted as well. False when not enabled.
  bool mark_cycles() const { return mark_cycles_.load(std::memory_order_relaxed); }

  // Begins a recording: forgets undrained events and the drop count of the one before. While
  // recording: only changes mark_cycles.
  void Start(bool mark_cycles) MYDIST_EXCLUDES(mutex_);
  // Records no more. What was recorded can still be drained.
  void Stop() MYDIST_EXCLUDES(mutex_);

  // Records an event that happens now. Nothing happens unless enabled. Any thread.
  // Whether it is the first since Drain: then the thread that drains has a time for that now.
  bool Record(EventPhase phase, std::string_view lane, std::string_view name,
              std::string_view args = {}) MYDIST_EXCLUDES(mutex_);

  // Records what began at `begin` and lasted so long. Else as Record.
  void RecordSpan(std::string_view lane, std::string_view name, TimePoint begin, Duration duration,
                  std::string_view args = {}) MYDIST_EXCLUDES(mutex_);

  // Takes all events recorded so far, in the order they were recorded.
  std::vector<TimelineEvent> Drain() MYDIST_EXCLUDES(mutex_);

  // When Drain should be called next: kFlushInterval after the oldest undrained event, at once when
  // half full, nothing when there is nothing to drain (an idle job does not wake up for it) or
  // recording has stopped: the thread that stops it drains.
  std::optional<TimePoint> NextFlush() MYDIST_EXCLUDES(mutex_);

  // Events dropped since Start because no thread drained in time.
  int64_t dropped_count() MYDIST_EXCLUDES(mutex_);

 private:
  // Whether it is the first since Drain.
  bool Add(TimelineEvent event, TimePoint now) MYDIST_REQUIRES(mutex_);

  const size_t capacity_;
  std::atomic<bool> enabled_{false};
  std::atomic<bool> mark_cycles_{false};
  Mutex mutex_;
  std::vector<TimelineEvent> events_ MYDIST_GUARDED_BY(mutex_);
  size_t usual_count_ MYDIST_GUARDED_BY(mutex_) = 0;  // Of the last Drain: room to make at once.
  TimePoint oldest_ MYDIST_GUARDED_BY(mutex_){};      // When events_[0] was recorded.
  int64_t dropped_count_ MYDIST_GUARDED_BY(mutex_) = 0;
};

}  // namespace mydist
