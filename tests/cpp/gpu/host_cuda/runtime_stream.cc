// Streams and events of HostCuda.
#include "gpu/host_cuda/world.h"

using mydist::host_cuda::Needs;
using mydist::host_cuda::World;

namespace mydist::host_cuda {
namespace {

cudaError_t Create(const char* call, unsigned flags, cudaStream_t* stream) {
  return World::Get().Run(call, Needs::kGpu, [&](World& world) {
    *stream = world.AddStream((flags & cudaStreamNonBlocking) == 0);
    return cudaSuccess;
  });
}

cudaError_t CreateEvent(const char* call, unsigned flags, cudaEvent_t* event) {
  return World::Get().Run(call, Needs::kGpu, [&](World& world) {
    *event = new CUevent_st{.gpu = world.CurrentGpu(),
                            .has_time = (flags & cudaEventDisableTiming) == 0};
    world.events.insert(*event);
    return cudaSuccess;
  });
}

// With the lock. What is wrong with taking the time between them; null: nothing.
const char* WhyNoTime(const CUevent_st& begin, const CUevent_st& end) {
  if (!begin.has_time || !end.has_time) return "an event without timing";
  if (begin.mark == nullptr || end.mark == nullptr) return "an event that was not recorded";
  if (begin.gpu != end.gpu) return "events of two GPUs";
  return nullptr;
}

}  // namespace
}  // namespace mydist::host_cuda

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return mydist::host_cuda::Create("cudaStreamCreateWithFlags", flags, stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return mydist::host_cuda::Create("cudaStreamCreateWithPriority", flags, stream);
}

// What is on it is done all the same.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return World::Get().Run("cudaStreamDestroy", Needs::kGpu, [&](World& world) {
    CUstream_st* const found = stream == nullptr ? nullptr : world.Resolve(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    found->is_closing = true;
    world.streams.erase(found);
    world.closing.insert(found);
    world.news.NotifyAll();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return World::Get().Run("cudaStreamSynchronize", Needs::kGpuAndNoGraph, [&](World& world) {
    CUstream_st* const found = world.Resolve(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    return world.Await(world.MarkEnd(*found), found->gpu);
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return World::Get().Run("cudaStreamWaitEvent", Needs::kGpu, [&](World& world) {
    CUstream_st* const found = world.Resolve(stream);
    if (found == nullptr || !world.Has(event)) return cudaErrorInvalidResourceHandle;
    if (found->capture != nullptr) return cudaErrorStreamCaptureIsolation;
    if (event->mark == nullptr) return cudaSuccess;
    found->items.push_back({.waits_for = event->mark});
    world.news.NotifyAll();
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return mydist::host_cuda::CreateEvent("cudaEventCreate", cudaEventDefault, event);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return mydist::host_cuda::CreateEvent("cudaEventCreateWithFlags", flags, event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return World::Get().Run("cudaEventDestroy", Needs::kGpu, [&](World& world) {
    if (!world.Has(event)) return cudaErrorInvalidResourceHandle;
    world.events.erase(event);
    world.old_events.push_back(event);
    event->mark.reset();
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return World::Get().Run("cudaEventRecord", Needs::kGpu, [&](World& world) {
    CUstream_st* const found = world.Resolve(stream);
    if (found == nullptr || !world.Has(event)) return cudaErrorInvalidResourceHandle;
    if (event->gpu != found->gpu) {
      world.Complain("the event of one GPU on the stream of another");
      return cudaErrorInvalidResourceHandle;
    }
    if (found->capture != nullptr) world.Complain("an event of ours in somebody's graph");
    event->mark = world.MarkEnd(*found);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return World::Get().Run("cudaEventQuery", Needs::kGpuAndNoGraph, [&](World& world) {
    if (!world.Has(event)) return cudaErrorInvalidResourceHandle;
    if (world.gpu(event->gpu).broken != cudaSuccess) return world.gpu(event->gpu).broken;
    return event->mark == nullptr || event->mark->is_over ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return World::Get().Run("cudaEventSynchronize", Needs::kGpuAndNoGraph, [&](World& world) {
    if (!world.Has(event)) return cudaErrorInvalidResourceHandle;
    return event->mark == nullptr ? cudaSuccess : world.Await(event->mark, event->gpu);
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return World::Get().Run("cudaEventElapsedTime", Needs::kGpu, [&](World& world) {
    if (!world.Has(begin) || !world.Has(end)) return cudaErrorInvalidResourceHandle;
    if (const char* const wrong = mydist::host_cuda::WhyNoTime(*begin, *end); wrong != nullptr) {
      world.Complain(wrong);
      return cudaErrorInvalidResourceHandle;
    }
    if (!begin->mark->is_over || !end->mark->is_over) return cudaErrorNotReady;
    const std::chrono::duration<float, std::milli> elapsed = end->mark->when - begin->mark->when;
    *milliseconds = elapsed.count();
    return cudaSuccess;
  });
}

}  // extern "C"
