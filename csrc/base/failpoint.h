// Failpoints: named places at which a test makes this rank die, stop, wait or throw. Armed once at
// init from Config, in builds that accept it (docs/decisions/0024-failpoints.md). A place that is
// not armed costs one relaxed load and a branch that is never taken.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/export.h"

namespace mydist {

enum class FailPlace : int {
  kNegotiate,  // The rank has taken its tensors, and has not announced them yet.
  kFuse,       // The ranks have agreed on a group, and its execution begins.
  kCopyIn,     // Before the copy to the fusion buffer or to the outputs.
  kReduce,     // Before the call that reduces or moves the data.
  kCopyOut,    // Before the copy from the fusion buffer.
  kCallback,   // The results are there, and the caller has not learned of it.
  kShutdown,   // The rank is about to tell the others that it leaves.
};

enum class FailAct : int { kKill, kSegv, kStop, kExit, kRaise, kDelay };

// What happens at the `pass`-th pass of this process through `place`.
struct MYDIST_EXPORT Failpoint {
  FailPlace place = FailPlace::kNegotiate;
  int64_t pass = 1;
  FailAct act = FailAct::kKill;
  std::chrono::milliseconds delay{0};

  // Of "PLACE:PASS:ACT", such as "copy_in:5:kill" or "reduce:1:delay_20" (milliseconds). Nothing
  // when the text is not valid.
  static std::optional<Failpoint> Parse(std::string_view text);
  static std::string AllowedText();
};

// Passes count from here on. Replaces the failpoint before; nothing: disarms it. Not for use while
// another thread passes a place.
MYDIST_EXPORT void ArmFailpoint(const std::optional<Failpoint>& failpoint);

namespace internal {
MYDIST_EXPORT extern std::atomic<bool> failpoint_is_armed;
MYDIST_EXPORT void PassArmedFailpoint(FailPlace place);
}  // namespace internal

// Throws std::runtime_error where the act is kRaise.
inline void PassFailpoint(FailPlace place) {
  if (internal::failpoint_is_armed.load(std::memory_order_relaxed)) [[unlikely]] {
    internal::PassArmedFailpoint(place);
  }
}

}  // namespace mydist
