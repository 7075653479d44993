// Timeline: the mailbox between the threads that record events and the engine that collects them.
// One of the three objects shared between threads: Record is called by callers' threads and by the
// engine, everything else by the engine; one Mutex, held for a few moves only, never for I/O.
// Bounded: when it is full, events are dropped and counted; recording never waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/mutex.h"
#include "timeline/event.h"

namespace mydist {

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

  // Records an event that happens now, or as given. Nothing happens unless enabled. Any thread.
  void Record(EventPhase phase, std::string_view lane, std::string_view name,
              std::string_view args = {}) MYDIST_EXCLUDES(mutex_);
  void Record(TimelineEvent event) MYDIST_EXCLUDES(mutex_);

  // Takes all events recorded so far, in the order they were recorded.
  std::vector<TimelineEvent> Drain() MYDIST_EXCLUDES(mutex_);

  // When Drain should be called next: kFlushInterval after the oldest undrained event, at once when
  // half full, nothing when there is nothing to drain (an idle job does not wake up for it) or
  // recording has stopped: the thread that stops it drains.
  std::optional<TimePoint> NextFlush() MYDIST_EXCLUDES(mutex_);

  // Events dropped since Start because no thread drained in time.
  int64_t dropped_count() MYDIST_EXCLUDES(mutex_);

 private:
  void Push(TimelineEvent event, TimePoint now) MYDIST_REQUIRES(mutex_);

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
