// The one notion of time: monotonic, never the wall clock, so clock steps cannot cause time-outs.
// Pure code takes `TimePoint now` as an argument; only engine loops and backends call Now().
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace mydist {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

inline TimePoint Now() { return Clock::now(); }

// A deadline that never comes, and one that has always passed.
inline constexpr TimePoint kNever = TimePoint::max();
inline constexpr TimePoint kPast = TimePoint::min();

// Of CLOCK_MONOTONIC, as ranks tell each other.
inline int64_t ToNanoseconds(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// The limit that a setting gives: zero means that there is none.
inline Duration OrNever(Duration limit) {
  return limit > Duration::zero() ? limit : Duration::max();
}
inline Duration Doubled(Duration duration) {
  return duration <= Duration::max() / 2 ? duration * 2 : Duration::max();
}

inline double ToSeconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// "10.0 s".
inline std::string SecondsText(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", seconds);
  return text;
}
inline std::string SecondsText(Duration duration) { return SecondsText(ToSeconds(duration)); }

}  // namespace mydist
