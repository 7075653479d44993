#include "torch/gpu_order.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DeviceType.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>

#include "base/log.h"
#include "base/mutex.h"
#include "job/job.h"
#include "memory/device/device_memory.h"
#include "torch/error_translation.h"

namespace mydist {
namespace {

using Guard = c10::impl::VirtualGuardImpl;

StreamHandle HandleOf(const Guard& guard, const c10::Stream& stream) {
  return {guard.getStreamNativeHandle(stream)};
}

at::Device PlaceOf(const DeviceOrder& order) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(order.device->index())};
}

Status NoGpus(const at::Device& device, const std::string& what, const std::string& why) {
  return Status::InvalidArgument(
      what + ": it is on " + device.str() + ", but mydist cannot use GPUs here: " + why +
      ". Run `mydistrun --check-build` for details, or pass tensor.cpu().");
}

Status RefuseCapture(const at::Device& device, const std::string& what) {
  return Status::InvalidArgument(
      what + ": the current stream of " + device.str() +
      " is being captured into a CUDA graph, which cannot contain a collective, because the ranks "
      "negotiate each call. Capture forward and backward only (inside optimizer.no_sync(), if "
      "there is "
      "a DistributedOptimizer), and call mydist between replays.");
}

// A stream that takes work: not one that is being captured.
Result<c10::Stream> StreamForWork(const Guard& guard, Device& gpu, const at::Device& device) {
  const c10::Stream current = guard.getStream(device);
  MYDIST_ASSIGN_OR_RETURN(const bool is_captured, gpu.IsCapturing(HandleOf(guard, current)));
  return is_captured ? guard.getDefaultStream(device) : current;
}

// A stream with little other work; the default stream where this torch has no pool.
c10::Stream StreamOfPool(const Guard& guard, const at::Device& device) {
  try {
    return guard.getStreamFromGlobalPool(device, false);
  } catch (const c10::Error& error) {
    MYDIST_LOG(kDebug) << "results on " << device.str() << " are allocated on the default stream: "
                       << error.what_without_backtrace();
    return guard.getDefaultStream(device);
  }
}

// Streams of torch, one for each GPU, to allocate on and not to compute on: what is recorded there
// is over at once, however much the host has put on other streams. Unless the pool, which goes
// round, has also given it to a stream that computes: then results are right, and late. The same
// for as long as the process lives, as torch keeps the memory for the stream that it was allocated
// on.
class AllocatingStreams {
 public:
  static AllocatingStreams& Instance() {
    static auto* const instance = new AllocatingStreams;
    return *instance;
  }

  c10::Stream On(const Guard& guard, const at::Device& device) MYDIST_EXCLUDES(mutex_) {
    if (const std::optional<c10::Stream> known = Find(device.index())) return *known;
    // Without the lock: torch may tell a tool in Python of it.
    const c10::Stream fresh = StreamOfPool(guard, device);
    MutexLock lock(mutex_);
    return streams_.emplace(device.index(), fresh).first->second;
  }

 private:
  AllocatingStreams() = default;

  std::optional<c10::Stream> Find(c10::DeviceIndex index) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto found = streams_.find(index);
    return found == streams_.end() ? std::nullopt : std::optional(found->second);
  }

  Mutex mutex_;
  std::map<c10::DeviceIndex, c10::Stream> streams_ MYDIST_GUARDED_BY(mutex_);
};

// The pool goes round, so a user may come to have that stream, too, and capture it; the default one
// is never captured.
Result<c10::Stream> StreamForMemory(const Guard& guard, Device& gpu, const at::Device& device) {
  const c10::Stream stream = AllocatingStreams::Instance().On(guard, device);
  MYDIST_ASSIGN_OR_RETURN(const bool is_captured, gpu.IsCapturing(HandleOf(guard, stream)));
  return is_captured ? guard.getDefaultStream(device) : stream;
}

}  // namespace

at::Device DeviceOf(const Submission& submission) {
  const int32_t number = submission.request.device;
  if (number == kCpuDevice) return at::kCPU;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(number)};
}

int32_t DeviceNumber(const at::Device& device) {
  return device.is_cuda() ? static_cast<int32_t>(device.index()) : kCpuDevice;
}

Status CheckDevice(const at::Device& device, const std::string& what) {
  if (device.is_cpu()) return Status::Ok();
  if (!device.is_cuda()) {
    return Status::InvalidArgument(what + ": it is on " + device.str() +
                                   ", expected a tensor on the CPU or on an NVIDIA GPU. Pass "
                                   "tensor.cpu().");
  }
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) {
    return NoGpus(device, what, "this torch was built without CUDA");
  }
  MYDIST_ASSIGN_OR_RETURN(const auto job, process::CurrentJob());
  const Result<std::shared_ptr<Device>> gpu = job->devices()->OpenDevice(device.index());
  if (!gpu.ok()) return NoGpus(device, what, gpu.status().message());
  MYDIST_ASSIGN_OR_RETURN(const bool is_captured, (*gpu)->IsCapturing(CurrentStream(device)));
  return is_captured ? RefuseCapture(device, what) : Status::Ok();
}

OrderPointer NewOrder(const at::Device& device) {
  if (!device.is_cuda()) return nullptr;
  auto order = std::make_shared<DeviceOrder>();
  order->device =
      ValueOrThrow(ValueOrThrow(process::CurrentJob())->devices()->OpenDevice(device.index()));
  return order;
}

StreamHandle CurrentStream(const at::Device& device) {
  const Guard guard(device.type());
  return HandleOf(guard, guard.getStream(device));
}

Status ReadyEvents::Mark(const OrderPointer& order, StreamHandle stream) {
  if (order == nullptr || order->ready != nullptr) return Status::Ok();
  const auto found = std::find_if(recorded_.begin(), recorded_.end(), [&](const Recorded& known) {
    return known.gpu == order->device && known.stream == stream;
  });
  if (found != recorded_.end()) {
    order->ready = found->event;
    return Status::Ok();
  }
  MYDIST_ASSIGN_OR_RETURN(order->ready, order->device->Record(stream));
  recorded_.push_back({order->device, stream, order->ready});
  return Status::Ok();
}

Status MarkReady(std::span<Submission> submissions) {
  ReadyEvents events;
  for (const Submission& submission : submissions) {
    const OrderPointer& order = submission.order;
    if (order == nullptr || order->ready != nullptr) continue;
    MYDIST_RETURN_IF_ERROR(events.Mark(order, CurrentStream(DeviceOf(submission))));
  }
  return Status::Ok();
}

Status FollowResults(std::span<const OrderPointer> orders, std::span<const c10::Storage> memory) {
  if (orders.empty()) return Status::Ok();
  const Guard guard(at::kCUDA);
  std::map<const Device*, c10::Stream> streams;
  // Most of those on one GPU have one event; those on another may have the same.
  const Device* last_gpu = nullptr;
  const DeviceEvent* last = nullptr;
  for (const OrderPointer& order : orders) {
    Device* const gpu = order->device.get();
    auto found = streams.find(gpu);
    if (found == streams.end()) {
      MYDIST_ASSIGN_OR_RETURN(const c10::Stream stream,
                              StreamForWork(guard, *gpu, PlaceOf(*order)));
      found = streams.emplace(gpu, stream).first;
    }
    if (order->done == nullptr || (order->done.get() == last && gpu == last_gpu)) continue;
    last_gpu = gpu;
    last = order->done.get();
    MYDIST_RETURN_IF_ERROR(gpu->Wait(HandleOf(guard, found->second), *order->done));
  }
  for (const c10::Storage& storage : memory) {
    for (const auto& [gpu, stream] : streams) {
      if (storage && storage.device() == stream.device()) {
        guard.recordDataPtrOnStream(storage.data_ptr(), stream);
      }
    }
  }
  return Status::Ok();
}

void NoteUse(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return;
  const Guard guard(at::kCUDA);
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), guard.getStream(tensor.device()));
}

Status CheckMayWait(std::span<const OrderPointer> orders) {
  const Device* last = nullptr;
  for (const OrderPointer& order : orders) {
    if (order->device.get() == last) continue;
    last = order->device.get();
    const at::Device device = PlaceOf(*order);
    MYDIST_ASSIGN_OR_RETURN(const bool is_captured,
                            order->device->IsCapturing(CurrentStream(device)));
    if (is_captured) return RefuseCapture(device, "synchronize()");
  }
  return Status::Ok();
}

at::Tensor EmptyOn(const at::Device& device, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (device.is_cpu()) return at::Tensor(at::detail::empty_cpu(sizes, dtype));
  const c10::DeviceGuard on_device(device);
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::Tensor(at::detail::empty_generic(sizes, c10::GetAllocator(device.type()), keys, dtype,
                                              std::nullopt));
}

// Not from the memory of a stream that computes, which is usable only when that has come so far:
// the engine's stream would stand behind all that the host has put there since the call. What the
// allocator hands out may still be in order on its stream, so `allocated` is waited for all the
// same. FollowResults tells torch of the streams that come to use it.
Result<at::Tensor> EmptyForResult(const at::Device& device, const Shape& shape,
                                  at::ScalarType dtype, const OrderPointer& order) {
  try {
    const c10::InferenceMode normal(false);
    if (order == nullptr) return EmptyOn(device, shape.dims(), dtype);
    at::Tensor tensor;
    // The engine's thread has no current device, and must not disturb a capture.
    MYDIST_RETURN_IF_ERROR(order->device->CallWithCurrent([&] {
      const Guard guard(device.type());
      MYDIST_ASSIGN_OR_RETURN(const c10::Stream stream,
                              StreamForMemory(guard, *order->device, device));
      const c10::StreamGuard on_stream(stream);
      tensor = EmptyOn(device, shape.dims(), dtype);
      MYDIST_ASSIGN_OR_RETURN(order->allocated, order->device->Record(HandleOf(guard, stream)));
      return Status::Ok();
    }));
    return tensor;
  } catch (const std::exception& error) {
    return Status::Internal("cannot allocate an output of shape " + shape.ToString() + ": " +
                            error.what());
  }
}

namespace {

void Warn(const char* why) {
  MYDIST_LOG(kWarning) << "torch did not release its cached memory: " << why;
}

// Of all GPUs, as torch has no other way. It may wait for what still uses such memory, as every
// cudaFree does.
void GiveBackCache(int device) noexcept {
  MYDIST_LOG(kDebug) << "GPU " << device << " has no memory left: torch releases its cached memory";
  try {
    c10::getDeviceAllocator(at::kCUDA)->emptyCache();
  } catch (const c10::Error& error) {
    Warn(error.what_without_backtrace());
  } catch (const std::exception& error) {
    Warn(error.what());
  } catch (...) {
    Warn("unknown exception");
  }
}

// Torch's allocator ends with the process: later than this, which was made after torch was loaded.
class Offer {
 public:
  Offer() { OnMemoryShortage(&GiveBackCache); }
  ~Offer() { OnMemoryShortage(nullptr); }
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;
};

}  // namespace

void OfferCachedMemory() { static const Offer kOffer; }

}  // namespace mydist
