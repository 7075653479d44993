// CudaDriver: the functions of the driver's own library that the runtime has no equal for, and
// what GPUs there are. The library is part of the driver and is opened when it is first needed.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "gpu/kernels/cuda_status.h"

namespace mydist::cuda {

struct CudaDriver {
  CUresult (*GetErrorName)(CUresult, const char**) = nullptr;
  CUresult (*DeviceGet)(CUdevice*, int index) = nullptr;
  CUresult (*PrimaryContextRetain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*PrimaryContextRelease)(CUdevice) = nullptr;
  CUresult (*PushCurrent)(CUcontext) = nullptr;
  CUresult (*PopCurrent)(CUcontext*) = nullptr;

  // Once per process; never closed. kInternal when there is no driver.
  static Result<const CudaDriver*> Load();

  Status StatusOf(CUresult result, const char* call, int device) const;
};

// GPUs that this process may use. Starts the driver. kInternal with the reason for none.
Result<int> CountDevices();

// "13.0" for 13000.
std::string VersionText(int version);

// CudaContext: one GPU as made current for calls of the runtime. CudaScope does that for a while.
// Pushed and popped with the driver, not with cudaSetDevice: setting back a device that the thread
// had never used, 0 by default, would start that GPU too, which costs hundreds of MB of its memory.

class CudaContext {
 public:
  // Starts the GPU, which takes a while the first time. kInvalidArgument for an index out of range.
  static Result<std::unique_ptr<CudaContext>> Retain(int index);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int index() const { return index_; }
  const std::string& bus_id() const { return bus_id_; }  // "0000:3b:00.0"

 private:
  friend class CudaScope;
  CudaContext(int index, const CudaDriver* driver) : index_(index), driver_(driver) {}

  const int index_;
  const CudaDriver* const driver_;
  std::string bus_id_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;  // The one that the runtime, and so torch, uses for this GPU.
};

// While it lives, calls of this thread are for that GPU, and are allowed though some stream of the
// process is being captured into a graph.
class CudaScope {
 public:
  explicit CudaScope(const CudaContext& context);
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

  const Status& status() const { return status_; }  // Of entering; if not OK nothing is current.

 private:
  const CudaContext& context_;
  Status status_;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;  // The thread's, meanwhile.
};

// `work` gives a cudaError_t; `call` is its name for the error.
template <typename Work>
Status CallOn(const CudaContext& context, const char* call, const Work& work) {
  const CudaScope scope(context);
  MYDIST_RETURN_IF_ERROR(scope.status());
  return CudaStatus(work(), call, context.index());
}

}  // namespace mydist::cuda
