#include "memory/device/stream_collectives.h"

#include <thread>

#include "base/clock.h"

namespace mydist {
namespace {

// Falling asleep and waking up take longer than most of what is waited for so.
constexpr Duration kSpin = std::chrono::microseconds(20);
constexpr Duration kNap = std::chrono::microseconds(50);

}  // namespace

Status WaitWatched(Device& device, const DeviceEvent& event, const WaitWatch& watch) {
  if (!watch) return device.Block(event);
  const TimePoint eager_until = Now() + kSpin;
  while (true) {
    MYDIST_ASSIGN_OR_RETURN(const bool is_over, device.IsOver(event));
    if (is_over) return Status::Ok();
    if (Now() < eager_until) continue;
    MYDIST_RETURN_IF_ERROR(watch());
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace mydist
