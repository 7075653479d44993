#include "timeline/timeline.h"

#include <utility>

namespace mydist {
namespace {

int64_t ToNanoseconds(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

void Timeline::Start(bool mark_cycles) {
  MutexLock lock(mutex_);
  if (!enabled()) {
    events_.clear();
    dropped_count_ = 0;
  }
  enabled_.store(true, std::memory_order_relaxed);
  mark_cycles_.store(mark_cycles, std::memory_order_relaxed);
}

void Timeline::Stop() {
  MutexLock lock(mutex_);
  enabled_.store(false, std::memory_order_relaxed);
  mark_cycles_.store(false, std::memory_order_relaxed);
}

void Timeline::Record(EventPhase phase, std::string_view lane, std::string_view name,
                      std::string_view args) {
  if (!enabled()) return;
  TimelineEvent event;
  event.phase = phase;
  event.lane = lane;
  event.name = name;
  event.args = args;
  MutexLock lock(mutex_);
  // The time is taken inside the lock, so that the order of recording is the order of time.
  const TimePoint now = Now();
  event.time_ns = ToNanoseconds(now);
  Push(std::move(event), now);
}

void Timeline::Record(TimelineEvent event) {
  if (!enabled()) return;
  MutexLock lock(mutex_);
  Push(std::move(event), Now());
}

void Timeline::Push(TimelineEvent event, TimePoint now) {
  if (!enabled()) return;  // Stopped since the caller looked.
  if (events_.size() >= capacity_) {
    ++dropped_count_;
    return;
  }
  if (events_.empty()) {
    oldest_ = now;
    events_.reserve(usual_count_);
  }
  events_.push_back(std::move(event));
}

std::vector<TimelineEvent> Timeline::Drain() {
  std::vector<TimelineEvent> drained;
  MutexLock lock(mutex_);
  drained.swap(events_);
  usual_count_ = drained.size();
  return drained;
}

std::optional<TimePoint> Timeline::NextFlush() {
  if (!enabled()) return std::nullopt;
  MutexLock lock(mutex_);
  if (events_.empty()) return std::nullopt;
  if (events_.size() >= capacity_ - capacity_ / 2) return oldest_;
  return oldest_ + kFlushInterval;
}

int64_t Timeline::dropped_count() {
  MutexLock lock(mutex_);
  return dropped_count_;
}

}  // namespace mydist
