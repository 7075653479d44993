// GpuOrder: orders collectives on GPU tensors with torch's streams. A collective runs after the
// work that the current stream has at its submission. Work submitted after the wait runs behind it.
// The Python thread that submits or waits uses this, except EmptyForResult. CUDA is reached through
// c10's interface for any device and through our plugin, so that a build needs no CUDA build of
// torch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/submission.h"

namespace mydist {

using OrderPointer = std::shared_ptr<DeviceOrder>;

// Submission::request.device of a tensor there, and back.
int32_t DeviceNumber(const at::Device& device);
at::Device DeviceOf(const Submission& submission);

// kInvalidArgument unless collectives can take tensors on this GPU now: why there is no way to
// GPUs, or that the current stream is being captured into a CUDA graph. Any other device but the
// CPU is refused. `what` is e.g. "allreduce of 'x'".
Status CheckDevice(const at::Device& device, const std::string& what);

// For one tensor, of a device that has been checked; null in host memory. Not yet in any order.
OrderPointer NewOrder(const at::Device& device);

// The current stream of that GPU, as the engine names it.
StreamHandle CurrentStream(const at::Device& device);

// Puts tensors behind what streams have now, by one event for each stream.
class ReadyEvents {
 public:
  // Errors of Device::Record. An order that is null, or has its event already, stays as it is.
  Status Mark(const OrderPointer& order, StreamHandle stream);

 private:
  struct Recorded {
    std::shared_ptr<Device> gpu;  // The event must not outlive it.
    StreamHandle stream;
    EventPointer event;
  };
  std::vector<Recorded> recorded_;
};

// For tensors of a submission without an order: behind the current stream of their GPU.
Status MarkReady(std::span<Submission> submissions);

// The current streams go on behind what the engine has done, and `memory`, wherever it came from,
// is not given out again before they have come that far. Never waits. Errors of Device::Wait.
Status FollowResults(std::span<const OrderPointer> orders, std::span<const c10::Storage> memory);

// The current stream of its GPU uses the memory, which may come from another one. Nothing for a
// tensor in host memory.
void NoteUse(const at::Tensor& tensor);

// kInvalidArgument when a current stream of these is being captured: it cannot wait for what is
// done outside of its graph.
Status CheckMayWait(std::span<const OrderPointer> orders);

// Uninitialized, without the dispatcher, Python or a mode of the caller's.
at::Tensor EmptyOn(const at::Device& device, at::IntArrayRef sizes, at::ScalarType dtype);

// The same, called by the thread that drives the engine, for a result: usable from
// `order->allocated` on.
Result<at::Tensor> EmptyForResult(const at::Device& device, const Shape& shape,
                                  at::ScalarType dtype, const OrderPointer& order);

// CachedMemory: what torch's allocator keeps of a GPU's memory though no tensor uses it. Our own
// buffers are not torch's, so it does not know when they lack it.

// From now on, until the process ends, torch is asked to give it back when memory for our buffers
// is short (memory/device/device_memory.h). Called once, at import.
void OfferCachedMemory();

}  // namespace mydist
