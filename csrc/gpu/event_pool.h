// EventPool: events of one GPU, used again when nobody has them. Owned by the CudaDevice, outlives
// what it gave out. Thread-safe; callers have the device current.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "memory/device/device.h"

namespace mydist::cuda {

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(cudaEvent_t native) : native_(native) {}
  cudaEvent_t native() const { return native_; }

 private:
  const cudaEvent_t native_;
};

class EventPool {
 public:
  explicit EventPool(int device) : device_(device) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // One that is not recorded yet. A thread that waits for it in cudaEventSynchronize sleeps.
  Result<std::shared_ptr<const CudaEvent>> Take();

  // Those that nobody has; last of all calls.
  void Destroy();

 private:
  void Keep(const CudaEvent* event);

  const int device_;
  Mutex mutex_;
  std::vector<std::unique_ptr<const CudaEvent>> spares_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::cuda
