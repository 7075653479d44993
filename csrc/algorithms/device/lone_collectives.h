// LoneCollectives: the collectives of one rank that has nobody to exchange with, on device memory
// (reduce): what is left are factors and copies. Owned by the engine, made for one stream; driven
// by one thread at a time. The host never waits; the bits are those of the host's collectives.
#pragma once

#include "algorithms/collectives.h"
#include "base/export.h"
#include "memory/device/device_memory.h"

namespace mydist {

class MYDIST_EXPORT LoneCollectives final : public Collectives {
 public:
  explicit LoneCollectives(const StreamSeat& seat) : seat_(seat), scratch_(seat) {}

  bool Supports(const BatchTraits& traits) const override;
  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override;
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
  Status Barrier() override { return Status::Ok(); }

 private:
  Status Move(const void* input, void* output, int64_t bytes);
  Status Scale(const void* input, void* output, int64_t count, const Reduction& reduction);

  const StreamSeat seat_;
  DeviceMemory scratch_;
};

}  // namespace mydist
