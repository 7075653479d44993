// Streams, events and graphs of HostCuda.
#include <utility>

#include "host_cuda/world.h"

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

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return World::Get().Run("cudaEventCreateWithFlags", Needs::kGpu, [&](World& world) {
    *event = new CUevent_st{.gpu = world.CurrentGpu(), .mark = nullptr};
    world.events.insert(*event);
    return cudaSuccess;
  });
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

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return World::Get().Run("cudaStreamBeginCapture", Needs::kGpu, [&](World& world) {
    CUstream_st* const found = stream == nullptr ? nullptr : world.Resolve(stream);
    if (found == nullptr || found->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    found->capture = new CUgraph_st;
    found->capture_mode = mode;
    found->capturer = std::this_thread::get_id();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return World::Get().Run("cudaStreamEndCapture", Needs::kGpu, [&](World& world) {
    CUstream_st* const found = world.Resolve(stream);
    if (found == nullptr || found->capture == nullptr) return cudaErrorIllegalState;
    *graph = std::exchange(found->capture, nullptr);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return World::Get().Run("cudaStreamIsCapturing", Needs::kGpu, [&](World& world) {
    CUstream_st* const found = world.Resolve(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    for (const CUstream_st* other : world.streams) {
      if (stream == nullptr && other->waits_for_default && other->capture != nullptr) {
        return cudaErrorStreamCaptureImplicit;
      }
    }
    *status =
        found->capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  return World::Get().Run("cudaGraphInstantiate", Needs::kGpu, [&](World&) {
    *executable = new CUgraphExec_st{graph->works};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return World::Get().Run("cudaGraphLaunch", Needs::kGpu, [&](World& world) {
    CUstream_st* const found = world.Resolve(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    for (const auto& work : executable->works) world.Put(*found, work);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

}  // extern "C"
