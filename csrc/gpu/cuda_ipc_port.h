// CudaIpcPort: an IpcPort on CUDA's runtime. Part of a CudaDevice. Its boards belong to the
// process: they stay when the device is closed, as other processes may have them open. Thread-safe.
#pragma once

#include "gpu/cuda_driver.h"
#include "memory/device/ipc_port.h"

namespace mydist::cuda {

class CudaIpcPort final : public IpcPort {
 public:
  explicit CudaIpcPort(const CudaContext* context) : context_(context) {}

  Result<ExportedBoard> Export() override;
  void Recycle(const ExportedBoard& board) override;
  Result<std::shared_ptr<uint8_t>> Open(const IpcHandle& handle) override;
  Result<IpcRoom> Room() override;
  Status Allreduce(const IpcAllreduce& job, StreamHandle stream) override;

 private:
  const CudaContext* const context_;
};

}  // namespace mydist::cuda
