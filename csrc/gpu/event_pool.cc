#include "gpu/event_pool.h"

#include <utility>

#include "gpu/kernels/cuda_status.h"

namespace mydist::cuda {

Result<std::shared_ptr<const CudaEvent>> EventPool::Take() {
  std::unique_ptr<const CudaEvent> event;
  {
    MutexLock lock(mutex_);
    if (!spares_.empty()) {
      event = std::move(spares_.back());
      spares_.pop_back();
    }
  }
  if (event == nullptr) {
    cudaEvent_t native = nullptr;
    MYDIST_RETURN_IF_ERROR(CudaStatus(
        cudaEventCreateWithFlags(&native, cudaEventDisableTiming | cudaEventBlockingSync),
        "cudaEventCreateWithFlags", device_));
    event = std::make_unique<const CudaEvent>(native);
  }
  return std::shared_ptr<const CudaEvent>(event.release(),
                                          [this](const CudaEvent* used) { Keep(used); });
}

void EventPool::Keep(const CudaEvent* event) {
  MutexLock lock(mutex_);
  // Nobody looks at its old record any more; those who wait for that on the device go on doing so.
  spares_.emplace_back(event);
}

void EventPool::Destroy() {
  MutexLock lock(mutex_);
  for (const auto& event : spares_) (void)cudaEventDestroy(event->native());
  spares_.clear();
}

}  // namespace mydist::cuda
