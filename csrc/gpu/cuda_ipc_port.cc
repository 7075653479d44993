#include "gpu/cuda_ipc_port.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "gpu/kernels/ipc_allreduce.h"
#include "memory/device/device.h"

namespace mydist::cuda {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(IpcHandle::bytes));

// All boards of one GPU that this process has ever made, with what keeps their memory alive.
class Boards {
 public:
  static Result<std::unique_ptr<Boards>> Open(int device) {
    MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<CudaContext> context, CudaContext::Retain(device));
    const CudaScope scope(*context);
    MYDIST_RETURN_IF_ERROR(scope.status());
    MYDIST_RETURN_IF_ERROR(LoadIpcKernels());
    return std::unique_ptr<Boards>(new Boards(std::move(context)));
  }

  Result<ExportedBoard> Take() {
    const CudaScope scope(*context_);
    MYDIST_RETURN_IF_ERROR(scope.status());
    if (spare_.empty()) {
      MYDIST_ASSIGN_OR_RETURN(const ExportedBoard made, Make());
      spare_.push_back(made);
    }
    MYDIST_RETURN_IF_ERROR(Clear(spare_.back()));
    const ExportedBoard board = spare_.back();
    spare_.pop_back();
    return board;
  }

  void Return(const ExportedBoard& board) { spare_.push_back(board); }

 private:
  explicit Boards(std::unique_ptr<CudaContext> context) : context_(std::move(context)) {}

  // Not from torch's memory, nor from a stream's pool: a handle names a whole allocation.
  static Result<ExportedBoard> Make() {
    void* memory = nullptr;
    MYDIST_RETURN_IF_CUDA_ERROR(cudaMalloc(&memory, static_cast<size_t>(kIpcBoardBytes)));
    ExportedBoard board{.memory = static_cast<uint8_t*>(memory)};
    cudaIpcMemHandle_t handle;
    const Status named = CudaStatus(cudaIpcGetMemHandle(&handle, memory), "cudaIpcGetMemHandle");
    if (!named.ok()) {
      (void)cudaFree(memory);
      return named;
    }
    std::memcpy(board.handle.bytes.data(), &handle, sizeof(handle));
    return board;
  }

  // On a stream of its own: the default one waits for all others.
  static Status Clear(const ExportedBoard& board) {
    cudaStream_t stream = nullptr;
    MYDIST_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaError_t error =
        cudaMemsetAsync(board.memory, 0, static_cast<size_t>(kIpcFlagBytes), stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    const Status cleared = CudaStatus(error, "cudaMemsetAsync");
    (void)cudaStreamDestroy(stream);
    return cleared;
  }

  const std::unique_ptr<CudaContext> context_;
  std::vector<ExportedBoard> spare_;
};

struct AllBoards {
  Mutex mutex;
  std::map<int, std::unique_ptr<Boards>> by_device MYDIST_GUARDED_BY(mutex);
};

AllBoards& BoardsOfProcess() {
  static auto* boards = new AllBoards;  // Until the process ends.
  return *boards;
}

}  // namespace

Result<ExportedBoard> CudaIpcPort::Export() {
  AllBoards& all = BoardsOfProcess();
  MutexLock lock(all.mutex);
  std::unique_ptr<Boards>& boards = all.by_device[context_->index()];
  if (boards == nullptr) {
    MYDIST_ASSIGN_OR_RETURN(boards, Boards::Open(context_->index()));
  }
  return boards->Take();
}

void CudaIpcPort::Recycle(const ExportedBoard& board) {
  AllBoards& all = BoardsOfProcess();
  MutexLock lock(all.mutex);
  all.by_device.at(context_->index())->Return(board);
}

Result<std::shared_ptr<uint8_t>> CudaIpcPort::Open(const IpcHandle& handle) {
  cudaIpcMemHandle_t native;
  std::memcpy(&native, handle.bytes.data(), sizeof(native));
  void* memory = nullptr;
  MYDIST_RETURN_IF_ERROR(CallOn(*context_, "cudaIpcOpenMemHandle", [&] {
    return cudaIpcOpenMemHandle(&memory, native, cudaIpcMemLazyEnablePeerAccess);
  }));
  return std::shared_ptr<uint8_t>(static_cast<uint8_t*>(memory), [this](uint8_t* opened) {
    (void)CallOn(*context_, "cudaIpcCloseMemHandle", [&] { return cudaIpcCloseMemHandle(opened); });
  });
}

Result<IpcRoom> CudaIpcPort::Room() {
  const CudaScope scope(*context_);
  MYDIST_RETURN_IF_ERROR(scope.status());
  const auto attribute = [&](cudaDeviceAttr name, int* value) {
    return CudaStatus(cudaDeviceGetAttribute(value, name, context_->index()),
                      "cudaDeviceGetAttribute");
  };
  int processors = 0;
  MYDIST_RETURN_IF_ERROR(attribute(cudaDevAttrMultiProcessorCount, &processors));
  int has_limit = 0;
  MYDIST_RETURN_IF_ERROR(attribute(cudaDevAttrKernelExecTimeout, &has_limit));
  MYDIST_ASSIGN_OR_RETURN(const int blocks, IpcBlocksPerProcessor());
  return IpcRoom{.blocks = processors * blocks, .ends_long_kernels = has_limit != 0};
}

Status CudaIpcPort::Allreduce(const IpcAllreduce& job, StreamHandle stream) {
  const CudaScope scope(*context_);
  MYDIST_RETURN_IF_ERROR(scope.status());
  return LaunchIpcAllreduce(job, static_cast<cudaStream_t>(stream.native));
}

}  // namespace mydist::cuda
