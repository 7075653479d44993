// DeviceSeats: the GPUs this engine works on, each opened when the first tensor on it comes.
// Owned by the executor, used by whoever drives the engine.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "base/result.h"
#include "ops/device/device.h"
#include "ops/device/device_memory.h"
#include "ops/device/staging_pipeline.h"

namespace mydist {

// Opens the GPU that the driver counts so; errors are those of DevicePlugin::OpenDevice. Null in a
// build or on a machine without GPUs.
using DeviceSource = std::function<Result<std::shared_ptr<Device>>(int index)>;

// What batches on one GPU are executed with: all of them on one stream.
struct DeviceSeat {
  std::shared_ptr<Device> device;
  StreamHandle stream;
  DeviceMemory fusion_memory;
  std::shared_ptr<StagingPipeline> staging;  // Through the host, for whatever needs it.
};

class DeviceSeats {
 public:
  explicit DeviceSeats(DeviceSource source) : source_(std::move(source)) {}
  // Waits for what is on the streams: their memory goes now.
  ~DeviceSeats();
  DeviceSeats(const DeviceSeats&) = delete;
  DeviceSeats& operator=(const DeviceSeats&) = delete;

  // Valid as long as this object.
  Result<DeviceSeat*> At(int index);

 private:
  const DeviceSource source_;
  std::map<int, DeviceSeat> seats_;
};

}  // namespace mydist
