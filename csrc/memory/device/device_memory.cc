#include "memory/device/device_memory.h"

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "world/late_writes.h"

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

Result<uint8_t*> DeviceMemory::Reserve(int64_t bytes) {
  MYDIST_RETURN_IF_ERROR(outgrown_.FreePassed(*seat_.device));
  if (bytes <= capacity_bytes_) return memory_.get();
  if (memory_ != nullptr) {
    MYDIST_ASSIGN_OR_RETURN(EventPointer last_use, seat_.device->Record(seat_.stream));
    outgrown_.Keep(std::move(memory_), std::move(last_use));
    memory_ = nullptr;
    capacity_bytes_ = 0;
  }
  MYDIST_ASSIGN_OR_RETURN(memory_, seat_.device->Allocate(bytes));
  memory_ = GuardFromLateWrites(std::move(memory_));
  capacity_bytes_ = bytes;
  return memory_.get();
}

namespace {

std::atomic<GiveBackMemory> registered = nullptr;
thread_local bool is_asking = false;

}  // namespace

void OnMemoryShortage(GiveBackMemory give_back) { registered = give_back; }

void AskForMemory(int device) {
  const GiveBackMemory give_back = registered;
  if (give_back == nullptr || is_asking) return;
  is_asking = true;
  give_back(device);
  is_asking = false;
}

}  // namespace mydist
