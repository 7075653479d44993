// CudaDevice: a Device on CUDA's runtime. Made by the plugin, owned by its opener. Calls are
// one push and pop of the device's context around one or two of CUDA's. Thread-safe. See Device.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "gpu/cuda_driver.h"
#include "gpu/kernels/convert.h"
#include "gpu/spare_memory.h"
#include "memory/device/device.h"

namespace mydist::cuda {

// EventPool: events of one GPU, used again when they are free. Owned by the CudaDevice, outlives
// what it gave out. Thread-safe; callers have the device current.

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

  // The free ones; last of all calls.
  void Destroy();

 private:
  void Keep(const CudaEvent* event);

  const int device_;
  Mutex mutex_;
  std::vector<std::unique_ptr<const CudaEvent>> spares_ MYDIST_GUARDED_BY(mutex_);
};

class CudaDevice final : public Device {
 public:
  static Result<std::unique_ptr<CudaDevice>> Open(int index);
  ~CudaDevice() override;

  int index() const override { return context_->index(); }
  std::string identity() const override { return context_->bus_id(); }
  Status CallWithCurrent(const std::function<Status()>& work) override;
  Result<StreamHandle> CreateStream() override;
  Result<bool> IsCapturing(StreamHandle stream) override;
  Result<std::shared_ptr<uint8_t>> Allocate(int64_t bytes) override;
  Result<std::shared_ptr<uint8_t>> AllocatePinned(int64_t bytes) override;
  Result<EventPointer> Record(StreamHandle stream) override;
  Status Wait(StreamHandle stream, const DeviceEvent& event) override;
  Result<bool> IsOver(const DeviceEvent& event) override;
  Status Block(const DeviceEvent& event) override;
  Status Copy(void* target, const void* source, int64_t bytes, StreamHandle stream) override;
  Status Convert(std::span<const ConvertSegment> segments, const Conversion& conversion,
                 StreamHandle stream) override;

 private:
  explicit CudaDevice(std::unique_ptr<CudaContext> context);

  // All that is below belongs to the context.
  const std::unique_ptr<CudaContext> context_;
  int processor_count_ = 0;  // Multiprocessors of the GPU.
  EventPool events_;
  nccl::SpareMemory device_memory_;
  nccl::SpareMemory pinned_memory_;
  Mutex mutex_;
  std::vector<cudaStream_t> streams_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::cuda
