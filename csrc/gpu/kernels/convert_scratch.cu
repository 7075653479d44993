#include "gpu/kernels/convert_scratch.h"

#include "gpu/kernels/convert.h"
#include "gpu/kernels/cuda_status.h"

namespace mydist::cuda {
namespace {

// While any stream of the process is captured, calls that might wait are refused to all threads,
// even if they have nothing to do with it, unless the thread says that it knows.
class RelaxedCapture {
 public:
  RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

void Free(ConvertTable& table) {
  static_cast<void>(cudaFree(table.memory));
  static_cast<void>(cudaFreeHost(table.pinned));
  if (table.over != nullptr) static_cast<void>(cudaEventDestroy(table.over));
  table = {};
}

Status Allocate(int64_t capacity, ConvertTable& table) {
  const auto bytes = static_cast<size_t>(capacity * kBytesPerSegment);
  MYDIST_RETURN_IF_CUDA_ERROR(cudaMalloc(&table.memory, bytes));
  MYDIST_RETURN_IF_CUDA_ERROR(cudaMallocHost(&table.pinned, bytes));
  MYDIST_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&table.over, cudaEventDisableTiming));
  table.capacity = capacity;
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<ConvertScratch>> ConvertScratch::Create() {
  const RelaxedCapture relaxed;
  int device = 0;
  int processor_count = 0;
  MYDIST_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  MYDIST_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&processor_count, cudaDevAttrMultiProcessorCount, device));
  MYDIST_RETURN_IF_ERROR(LoadConvertKernels());
  return std::unique_ptr<ConvertScratch>(new ConvertScratch(processor_count));
}

ConvertScratch::~ConvertScratch() {
  const RelaxedCapture relaxed;
  const MutexLock lock(mutex_);
  for (ConvertTable& table : tables_) {
    if (table.over != nullptr) static_cast<void>(cudaEventSynchronize(table.over));
    Free(table);
  }
}

Result<ConvertTable*> ConvertScratch::Take(int64_t segment_count) {
  const RelaxedCapture relaxed;
  const MutexLock lock(mutex_);
  ConvertTable* smaller = nullptr;
  for (ConvertTable& table : tables_) {
    if (table.is_taken) continue;
    const cudaError_t error = table.over == nullptr ? cudaSuccess : cudaEventQuery(table.over);
    if (error == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // It is an answer, not an error.
      continue;
    }
    MYDIST_RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery"));
    if (table.capacity >= segment_count) {
      table.is_taken = true;
      return &table;
    }
    // Rather another one than none: freeing memory waits for the device.
    if (smaller == nullptr || table.capacity < smaller->capacity) smaller = &table;
  }
  if (smaller == nullptr) return smaller;
  Free(*smaller);
  // Twice as much, so that a list which grows does not need a new one each time.
  if (Status status = Allocate(2 * segment_count, *smaller); !status.ok()) {
    Free(*smaller);
    return status;
  }
  smaller->is_taken = true;
  return smaller;
}

Status ConvertScratch::Return(ConvertTable& table, cudaStream_t stream) {
  const RelaxedCapture relaxed;
  const MutexLock lock(mutex_);
  MYDIST_RETURN_IF_CUDA_ERROR(cudaEventRecord(table.over, stream));
  table.is_taken = false;
  return Status::Ok();
}

}  // namespace mydist::cuda
