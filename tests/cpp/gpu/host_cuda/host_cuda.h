// HostCuda: CUDA's runtime, and what CudaDriver asks of its driver, in host memory. The plugin for
// GPUs is linked with it in tests, so that what it says to CUDA is said on machines without a GPU,
// and its kernels run, thread by thread. Each stream is a thread, which works when it likes.
//
// It is stricter than a GPU, which forgives much, or leaves the error to somebody else's next call:
// a stream, event or address of another GPU or already destroyed, memory used beyond its end, a
// copy that would keep the host, a kernel launched before it was loaded, a call with no GPU
// current. It says so and ends the process.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

namespace mydist::host_cuda {

inline constexpr int kGpuCount = 3;
inline constexpr size_t kGpuBytes = size_t{1} << 29;  // Of each.

// The next call of that name, whoever makes it, does nothing and answers with `error`.
void FailNext(const std::string& call, cudaError_t error);
// As after an access to no memory: what is on its streams is dropped, calls answer with `error`.
void BreakGpu(int gpu, cudaError_t error);
void RepairGpu(int gpu);

// What this thread would find with cudaGetLastError, which stays.
cudaError_t LastError();

// What is there now and has to be destroyed, freed or released by somebody.
struct Census {
  int streams = 0;
  int events = 0;
  int device_blocks = 0;
  int pinned_blocks = 0;
  int graphs = 0;
  int contexts = 0;  // Times that one has been retained.

  bool operator==(const Census&) const = default;
};
Census TakeCensus();

// What was asked for since the process began, be it for a stream or for a graph.
struct Workload {
  int launches = 0;
  int copies = 0;

  bool operator==(const Workload&) const = default;
};
Workload TakeWorkload();

// While it lives, what is wrong is noted and the process goes on.
class Complaints {
 public:
  Complaints();
  ~Complaints();
  Complaints(const Complaints&) = delete;
  Complaints& operator=(const Complaints&) = delete;

  std::vector<std::string> texts() const;
};

// Puts a launch of `kernel` on `stream`.
cudaError_t Launch(const void* kernel, cudaStream_t stream, std::function<void()> run);

}  // namespace mydist::host_cuda
