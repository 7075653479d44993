// IpcCollectives: small allreduces of ranks whose GPUs are in one host, by a kernel that reads the
// others' memory (reduce); nothing else. Puts its work on the link's stream and returns.
// Owned by the engine, used by whoever drives it. The bits are those of host memory: the order is
// that of the ranks, and 16-bit floats are rounded once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "algorithms/collectives.h"
#include "algorithms/device/ipc_link.h"
#include "base/export.h"

namespace mydist {

class MYDIST_EXPORT IpcCollectives final : public Collectives {
 public:
  // For batches of at most `limit_bytes`, the same on all ranks.
  IpcCollectives(std::shared_ptr<IpcLink> link, int64_t limit_bytes)
      : link_(std::move(link)), limit_bytes_(limit_bytes) {}

  bool Supports(const BatchTraits& traits) const override;
  // Of any size, piece by piece.
  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override;

  // Never supported: kInternal.
  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts) override;
  Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                int root) override;
  Status AdasumAllreduce(void* data, std::span<const int64_t> counts,
                         const Reduction& reduction) override;
  Status Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                int root) override;
  Status Scatter(const void* input, std::span<const int64_t> byte_counts, void* output,
                 int root) override;
  Status Send(const void* data, int64_t bytes, int peer) override;
  Status Receive(void* data, int64_t bytes, int peer) override;
  Status Broadcast(void* data, int64_t bytes, int root) override;
  Status Alltoall(const void* input, std::span<const int64_t> send_bytes, void* output,
                  std::span<const int64_t> receive_bytes) override;
  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction) override;
  Status Barrier() override;

 private:
  const std::shared_ptr<IpcLink> link_;
  const int64_t limit_bytes_;
};

}  // namespace mydist
