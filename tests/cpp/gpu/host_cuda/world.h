// World: all that HostCuda knows, of one process. Calls begin with Run, which has the lock.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "gpu/host_cuda/host_cuda.h"
#include "gpu/host_cuda/memory.h"
#include "gpu/host_cuda/stream.h"

struct CUctx_st {
  int gpu = 0;
};

struct CUevent_st {
  int gpu = 0;
  bool has_time = false;
  mydist::host_cuda::MarkPointer mark{};  // Of the last record; null: none yet.
};

struct CUgraph_st {
  std::vector<std::function<void()>> works;
};

struct CUgraphExec_st {
  std::vector<std::function<void()>> works;
};

namespace mydist::host_cuda {

struct Gpu {
  CUctx_st context;
  int retained = 0;
  cudaError_t broken = cudaSuccess;
  CUstream_st* default_stream = nullptr;
  std::set<const void*> loaded;  // Kernels.
};

// What CUDA keeps for each thread.
struct ThreadState {
  std::vector<int> current;  // GPUs, the last is the one.
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  cudaError_t last_error = cudaSuccess;
};

// What a call asks for.
enum class Needs {
  kNothing,
  kGpu,           // One that is current and not broken.
  kGpuAndNoGraph  // Also no stream captures, unless this thread expects it.
};

class World {
 public:
  static World& Get();
  static ThreadState& Thread();

  // The body of a call: `body(world)` with the lock, if nothing is against it.
  template <typename Body>
  cudaError_t Run(const char* call, Needs needs, const Body& body) {
    MutexLock lock(mutex);
    cudaError_t error = Begin(call, needs);
    if (error == cudaSuccess) error = body(*this);
    if (error != cudaSuccess) Thread().last_error = error;
    return error;
  }

  // All below with the lock.
  cudaError_t Begin(const std::string& call, Needs needs) MYDIST_REQUIRES(mutex);
  void Complain(const std::string& what) MYDIST_REQUIRES(mutex);
  int CurrentGpu() MYDIST_REQUIRES(mutex);  // One that is current.
  Gpu& gpu(int index) { return gpus[static_cast<size_t>(index)]; }
  Gpu& current() MYDIST_REQUIRES(mutex) { return gpu(CurrentGpu()); }

  // Null, with a complaint, for one that is not there. The default stream is made when it is used.
  CUstream_st* Resolve(cudaStream_t stream) MYDIST_REQUIRES(mutex);
  bool Has(cudaEvent_t event) MYDIST_REQUIRES(mutex);
  bool Has(cudaGraph_t graph) MYDIST_REQUIRES(mutex);
  CUstream_st* AddStream(bool waits_for_default) MYDIST_REQUIRES(mutex);
  void Put(CUstream_st& stream, std::function<void()> work) MYDIST_REQUIRES(mutex);
  MarkPointer MarkEnd(CUstream_st& stream) MYDIST_REQUIRES(mutex);
  // Until it is over or the GPU is broken, which is the answer then.
  cudaError_t Await(const MarkPointer& mark, int gpu) MYDIST_REQUIRES(mutex);
  // All that is on the streams of a GPU.
  cudaError_t AwaitGpu(int gpu) MYDIST_REQUIRES(mutex);

  Mutex mutex;
  CondVar news;  // Of any kind.
  std::array<Gpu, kGpuCount> gpus MYDIST_GUARDED_BY(mutex);
  std::set<CUstream_st*> streams MYDIST_GUARDED_BY(mutex);
  std::set<CUstream_st*> closing MYDIST_GUARDED_BY(mutex);  // Destroyed, and not done yet.
  std::set<CUevent_st*> events MYDIST_GUARDED_BY(mutex);
  std::set<CUgraph_st*> graphs MYDIST_GUARDED_BY(mutex);  // Whose capture has ended.
  // What was destroyed is never freed: no later one is taken for it.
  std::vector<CUstream_st*> old_streams MYDIST_GUARDED_BY(mutex);
  std::vector<CUevent_st*> old_events MYDIST_GUARDED_BY(mutex);
  std::vector<CUgraph_st*> old_graphs MYDIST_GUARDED_BY(mutex);
  Memory memory MYDIST_GUARDED_BY(mutex);
  Workload workload MYDIST_GUARDED_BY(mutex);
  std::map<std::string, cudaError_t> failures MYDIST_GUARDED_BY(mutex);
  // Where complaints go; null: to the end of the process.
  std::vector<std::string>* collected MYDIST_GUARDED_BY(mutex) = nullptr;

 private:
  World();
  void Work(CUstream_st* stream) MYDIST_EXCLUDES(mutex);
  bool MayDuringCapture() MYDIST_REQUIRES(mutex);

  std::string call_ MYDIST_GUARDED_BY(mutex);   // The last one that began.
  pid_t process_ MYDIST_GUARDED_BY(mutex) = 0;  // That used CUDA first; 0: none yet.
};

}  // namespace mydist::host_cuda
