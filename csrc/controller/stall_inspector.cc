#include "controller/stall_inspector.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace mydist {
namespace {

Duration OrNever(Duration limit) { return limit > Duration::zero() ? limit : Duration::max(); }

TimePoint After(TimePoint since, Duration duration) {
  return duration >= kNever - since ? kNever : since + duration;
}

}  // namespace

StallInspector::StallInspector(Duration warning, Duration shutdown)
    : warning_(OrNever(warning)),
      shutdown_(OrNever(shutdown)),
      first_due_(std::min(warning_, shutdown_)) {}

uint64_t StallInspector::Start(std::string name, TimePoint since, TimePoint now) {
  const uint64_t number = ++last_number_;
  if (!enabled()) return number;
  waits_.emplace(number, Wait{std::move(name), since, warning_});
  if (since >= now) {
    fresh_.push_back(number);
  } else {
    late_.push_back(number);
  }
  // Waits that ended are still queued; keep the queue proportional to what really waits.
  if (fresh_.size() > 2 * waits_.size() + 64) {
    std::erase_if(fresh_, [&](uint64_t wait) { return !IsWaiting(wait); });
  }
  return number;
}

void StallInspector::Stop(uint64_t wait) { waits_.erase(wait); }

TimePoint StallInspector::Since(uint64_t wait) const {
  const auto it = waits_.find(wait);
  MYDIST_CHECK(it != waits_.end());
  return it->second.since;
}

std::vector<StallEvent> StallInspector::TakeDue(TimePoint now) {
  std::vector<StallEvent> events;
  std::erase_if(late_, [&](uint64_t wait) { return !IsWaiting(wait); });
  for (const uint64_t wait : late_) Collect(wait, now, events);
  while (!fresh_.empty()) {
    const uint64_t wait = fresh_.front();
    const auto it = waits_.find(wait);
    if (it != waits_.end() && After(it->second.since, first_due_) > now) break;
    fresh_.pop_front();
    if (it == waits_.end()) continue;
    Collect(wait, now, events);
    late_.push_back(wait);
  }
  return events;
}

TimePoint StallInspector::NextDeadline() {
  while (!fresh_.empty() && !IsWaiting(fresh_.front())) fresh_.pop_front();
  TimePoint deadline = kNever;
  if (!fresh_.empty()) deadline = After(waits_.at(fresh_.front()).since, first_due_);
  for (const uint64_t wait : late_) {
    const auto it = waits_.find(wait);
    if (it != waits_.end()) deadline = std::min(deadline, DueOf(it->second));
  }
  return deadline;
}

std::vector<std::string> StallInspector::Names() const {
  std::vector<std::string> names;
  for (const auto& [number, wait] : waits_) names.push_back(wait.name);
  std::sort(names.begin(), names.end());
  return names;
}

void StallInspector::Clear() {
  waits_.clear();
  fresh_.clear();
  late_.clear();
}

TimePoint StallInspector::DueOf(const Wait& wait) const {
  const Duration expiry = wait.expired ? Duration::max() : shutdown_;
  return After(wait.since, std::min(wait.next_warning, expiry));
}

void StallInspector::Collect(uint64_t number, TimePoint now, std::vector<StallEvent>& events) {
  Wait& wait = waits_.at(number);
  if (now < DueOf(wait)) return;
  const Duration waited = now - wait.since;
  const bool expires = !wait.expired && waited >= shutdown_;
  wait.expired = wait.expired || expires;
  while (wait.next_warning <= waited) {
    const bool doubles = wait.next_warning <= Duration::max() / 2;
    wait.next_warning = doubles ? wait.next_warning * 2 : Duration::max();
  }
  events.push_back({number, wait.name, waited, expires});
}

}  // namespace mydist
