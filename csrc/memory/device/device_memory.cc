#include "memory/device/device_memory.h"

#include <atomic>
#include <utility>

#include "world/late_writes.h"

namespace mydist {

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
