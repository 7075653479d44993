#include "gpu/cuda_device.h"

#include <string>
#include <utility>

#include "base/clock.h"
#include "gpu/kernels/cuda_status.h"
#include "memory/device/device_memory.h"

namespace mydist::cuda {

namespace {

// Falling asleep and waking up take about this long.
constexpr std::chrono::microseconds kSpin{20};

cudaStream_t Native(StreamHandle stream) { return static_cast<cudaStream_t>(stream.native); }

cudaEvent_t Native(const DeviceEvent& event) {
  return static_cast<const CudaEvent&>(event).native();
}

std::string FreeMemory() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return "";
  return ", " + std::to_string(free_bytes >> 20) + " of " + std::to_string(total_bytes >> 20) +
         " MiB are free";
}

nccl::SpareMemory::Source DeviceMemory(const CudaContext& context) {
  const auto get = [&context](int64_t bytes) -> Result<uint8_t*> {
    const CudaScope scope(context);
    MYDIST_RETURN_IF_ERROR(scope.status());
    void* data = nullptr;
    // Not from a stream's pool: NCCL could not map such memory.
    const Status status =
        CudaStatus(cudaMalloc(&data, static_cast<size_t>(bytes)), "cudaMalloc", context.index());
    if (status.ok()) return static_cast<uint8_t*>(data);
    return status.WithContext("cannot allocate " + std::to_string(bytes) + " bytes of GPU memory" +
                              FreeMemory());
  };
  const auto give_back = [&context](uint8_t* data) {
    (void)CallOn(context, "cudaFree", [&] { return cudaFree(data); });
  };
  // Others free theirs in here, which must not end a capture either.
  const auto ask_others = [&context] {
    const CudaScope scope(context);
    if (scope.status().ok()) AskForMemory(context.index());
  };
  return {get, give_back, ask_others};
}

nccl::SpareMemory::Source PinnedMemory(const CudaContext& context) {
  const auto get = [&context](int64_t bytes) -> Result<uint8_t*> {
    void* data = nullptr;
    const Status status = CallOn(context, "cudaHostAlloc", [&] {
      // Portable: pinned for all GPUs of the process.
      return cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable);
    });
    if (status.ok()) return static_cast<uint8_t*>(data);
    return status.WithContext("cannot allocate " + std::to_string(bytes) +
                              " bytes of pinned memory");
  };
  const auto give_back = [&context](uint8_t* data) {
    (void)CallOn(context, "cudaFreeHost", [&] { return cudaFreeHost(data); });
  };
  return {get, give_back};
}

// With the device current. Not ready is an answer, and nothing to be found as the last error.
Result<bool> Query(const DeviceEvent& event, int device) {
  const cudaError_t error = cudaEventQuery(Native(event));
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  MYDIST_RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery", device));
  return true;
}

}  // namespace

CudaDevice::CudaDevice(std::unique_ptr<CudaContext> context)
    : context_(std::move(context)),
      events_(context_->index()),
      device_memory_(DeviceMemory(*context_)),
      pinned_memory_(PinnedMemory(*context_)) {}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Open(int index) {
  MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<CudaContext> context, CudaContext::Retain(index));
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(context)));
  const CudaScope scope(*device->context_);
  MYDIST_RETURN_IF_ERROR(scope.status());
  MYDIST_RETURN_IF_ERROR(CudaStatus(
      cudaDeviceGetAttribute(&device->processor_count_, cudaDevAttrMultiProcessorCount, index),
      "cudaDeviceGetAttribute", index));
  MYDIST_RETURN_IF_ERROR(LoadConvertKernels());
  return device;
}

// A failure here means that the process ends or the GPU is lost, so it is ignored.
CudaDevice::~CudaDevice() {
  const CudaScope scope(*context_);
  if (!scope.status().ok()) return;
  events_.Destroy();
  for (cudaStream_t stream : streams_) (void)cudaStreamDestroy(stream);
}

Status CudaDevice::CallWithCurrent(const std::function<Status()>& work) {
  const CudaScope scope(*context_);
  MYDIST_RETURN_IF_ERROR(scope.status());
  return work();
}

Result<StreamHandle> CudaDevice::CreateStream() {
  cudaStream_t stream = nullptr;
  MYDIST_RETURN_IF_ERROR(CallOn(*context_, "cudaStreamCreateWithPriority", [&] {
    int least = 0;
    int greatest = 0;
    const cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error != cudaSuccess) return error;
    // First among what is ready: others wait for what we move, seldom we for what they compute.
    return cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest);
  }));
  MutexLock lock(mutex_);
  streams_.push_back(stream);
  return StreamHandle{stream};
}

Result<bool> CudaDevice::IsCapturing(StreamHandle stream) {
  const CudaScope scope(*context_);
  MYDIST_RETURN_IF_ERROR(scope.status());
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(Native(stream), &capture);
  if (error == cudaErrorStreamCaptureImplicit) {
    (void)cudaGetLastError();
    return true;
  }
  MYDIST_RETURN_IF_ERROR(CudaStatus(error, "cudaStreamIsCapturing", context_->index()));
  return capture != cudaStreamCaptureStatusNone;
}

Result<std::shared_ptr<uint8_t>> CudaDevice::Allocate(int64_t bytes) {
  return device_memory_.Take(bytes);
}

Result<std::shared_ptr<uint8_t>> CudaDevice::AllocatePinned(int64_t bytes) {
  return pinned_memory_.Take(bytes);
}

Result<EventPointer> CudaDevice::Record(StreamHandle stream) {
  const CudaScope scope(*context_);
  MYDIST_RETURN_IF_ERROR(scope.status());
  MYDIST_ASSIGN_OR_RETURN(const std::shared_ptr<const CudaEvent> event, events_.Take());
  MYDIST_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event->native(), Native(stream)),
                                    "cudaEventRecord", context_->index()));
  return EventPointer(event);
}

Status CudaDevice::Wait(StreamHandle stream, const DeviceEvent& event) {
  return CallOn(*context_, "cudaStreamWaitEvent",
                [&] { return cudaStreamWaitEvent(Native(stream), Native(event), 0); });
}

Result<bool> CudaDevice::IsOver(const DeviceEvent& event) {
  const CudaScope scope(*context_);
  MYDIST_RETURN_IF_ERROR(scope.status());
  return Query(event, context_->index());
}

Status CudaDevice::Block(const DeviceEvent& event) {
  const CudaScope scope(*context_);
  MYDIST_RETURN_IF_ERROR(scope.status());
  for (const TimePoint end = Now() + kSpin; Now() < end;) {
    MYDIST_ASSIGN_OR_RETURN(const bool is_over, Query(event, context_->index()));
    if (is_over) return Status::Ok();
  }
  return CudaStatus(cudaEventSynchronize(Native(event)), "cudaEventSynchronize", context_->index());
}

Status CudaDevice::Copy(void* target, const void* source, int64_t bytes, StreamHandle stream) {
  if (bytes == 0) return Status::Ok();
  return CallOn(*context_, "cudaMemcpyAsync", [&] {
    return cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), cudaMemcpyDefault,
                           Native(stream));
  });
}

Status CudaDevice::Convert(std::span<const ConvertSegment> segments, const Conversion& conversion,
                           StreamHandle stream) {
  const CudaScope scope(*context_);
  MYDIST_RETURN_IF_ERROR(scope.status());
  return LaunchConvert(segments, conversion, processor_count_, Native(stream));
}

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
  // No thread reads its old record any more; waits for it on the device go on.
  spares_.emplace_back(event);
}

void EventPool::Destroy() {
  MutexLock lock(mutex_);
  for (const auto& event : spares_) (void)cudaEventDestroy(event->native());
  spares_.clear();
}

}  // namespace mydist::cuda
