// Captures and graphs of HostCuda.
#include <utility>

#include "gpu/host_cuda/world.h"

using mydist::host_cuda::Needs;
using mydist::host_cuda::World;

extern "C" {

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
    if (found->capture_mode != cudaStreamCaptureModeRelaxed &&
        found->capturer != std::this_thread::get_id()) {
      world.Complain("another thread has begun it");
      return cudaErrorStreamCaptureWrongThread;
    }
    *graph = std::exchange(found->capture, nullptr);
    world.graphs.insert(*graph);
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
  return World::Get().Run("cudaGraphInstantiate", Needs::kGpu, [&](World& world) {
    if (!world.Has(graph)) return cudaErrorInvalidValue;
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

// How many there are; what they are nobody has asked yet.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return World::Get().Run("cudaGraphGetNodes", Needs::kNothing, [&](World& world) {
    if (!world.Has(graph)) return cudaErrorInvalidValue;
    if (nodes != nullptr) {
      world.Complain("the nodes themselves, of which HostCuda has no more than the number");
      return cudaErrorNotSupported;
    }
    *count = graph->works.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return World::Get().Run("cudaGraphDestroy", Needs::kNothing, [&](World& world) {
    if (!world.Has(graph)) return cudaErrorInvalidValue;
    world.graphs.erase(graph);
    world.old_graphs.push_back(graph);
    graph->works.clear();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

}  // extern "C"
