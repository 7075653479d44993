// DeviceSeats: the GPUs this engine works on, each opened when the first tensor on it comes.
// Owned by the executor, used by whoever drives the engine.
#pragma once

#include <map>
#include <memory>

#include "algorithms/device/staging_pipeline.h"
#include "base/result.h"
#include "memory/device/device.h"
#include "memory/device/device_memory.h"
#include "memory/device/passing_memory.h"
#include "transport/factory.h"

namespace mydist {

// What batches on one GPU are executed with: all of them on one stream.
struct DeviceSeat {
  std::shared_ptr<Device> device;
  StreamSeat on_stream;
  DeviceMemory fusion_memory;
  DeviceMemory guest_memory;                 // See GuestTensors.
  std::shared_ptr<StagingPipeline> staging;  // Through the host, for whatever needs it.
  PassingMemory passing{};
  EventPointer last_batch{};  // Its end; null: it is known to be over.
  Status ipc_trial{};         // Why one between GPUs has failed; OK: none has.
};

class DeviceSeats {
 public:
  // `plugin`, where GPUs come from, may be null: there are none. `watch`: see StreamSeat.
  DeviceSeats(DevicePlugin* plugin, WaitWatch watch) : plugin_(plugin), watch_(std::move(watch)) {}
  // Waits for what is on the streams: their memory goes now.
  ~DeviceSeats();
  DeviceSeats(const DeviceSeats&) = delete;
  DeviceSeats& operator=(const DeviceSeats&) = delete;

  // Valid as long as this object.
  Result<DeviceSeat*> At(int index);
  // The GPU of a rank that has had no tensor to say so: one that it uses already, else the one that
  // goes with its number on the host.
  Result<int> Home(int local_rank) const;

  // Whether the work of all batches is known to be over. Never waits. Errors: those of Device.
  Result<bool> AreIdle();

  // See StagingPipeline::most_in_flight; of the GPU that has had most.
  int64_t MostStagedChunks() const;

 private:
  DevicePlugin* const plugin_;
  const WaitWatch watch_;
  std::map<int, DeviceSeat> seats_;
};

}  // namespace mydist
