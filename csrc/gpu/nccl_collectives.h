// NcclCollectives: collectives on device memory over NCCL (reduce).
// Owned by the engine, called by the thread that drives it, one call at a time, with the
// communicator of the same process set. A call puts its work on the seat's stream and returns; only
// Barrier waits for the device. Destroyed when the stream has passed. What differs from
// Collectives: nccl_communicator.h says how numbers do; Reduce need not have the bits of Allreduce.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "algorithms/collectives.h"
#include "algorithms/device/device_plugin.h"
#include "gpu/nccl_communicator.h"
#include "memory/device/device_memory.h"

namespace mydist {

class NcclCollectives final : public Collectives {
 public:
  // `communicator` outlives this object; it is opened by the first collective of the set.
  NcclCollectives(StreamSeat seat, NcclCommunicator* communicator);

  // Tensors on the seat's device, but not what NcclReduces denies. Transfers between two ranks only
  // once the communicator is open, as that needs all ranks; all of them see that at the same batch.
  bool Supports(const BatchTraits& traits) const override;

  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override;
  Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                int root) override;
  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts) override;
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
  // One part for each rank, in rank order; empty: none.
  template <typename Byte>
  struct Parts {
    Byte* memory = nullptr;
    std::span<const int64_t> byte_counts;

    int64_t BytesOf(int rank) const {
      return byte_counts.empty() ? 0 : byte_counts[static_cast<size_t>(rank)];
    }
  };
  // A message to and from each peer, where its part is not empty.
  Status Exchange(const char* what, const Parts<const uint8_t>& outgoing,
                  const Parts<uint8_t>& incoming);

  // What `Calls` of a reduction get, besides the communicator.
  template <typename Calls>
  Status ReduceInGroup(const char* what, const NcclReduction& plan, const Calls& calls);

  Result<NcclReduction> Plan(const char* what, const Reduction& reduction) const;
  // target = source × factor.
  Status Scale(const void* source, void* target, int64_t count, DataType dtype, Factor factor);
  Status CopyOwn(const void* source, void* target, int64_t bytes);
  Status GatherUneven(const void* input, uint8_t* output, std::span<const int64_t> byte_counts);
  Status ReducescatterUneven(const uint8_t* input, void* output, std::span<const int64_t> counts,
                             const NcclReduction& plan);
  nccl::Stream stream() const { return static_cast<nccl::Stream>(seat_.stream.native); }
  const nccl::NcclApi& api() const { return communicator_->api(); }

  const StreamSeat seat_;
  NcclCommunicator* const communicator_;
  const int rank_;
  const int size_;
  DeviceMemory scratch_;  // Scaled contributions where the input must not be changed.
  std::shared_ptr<uint8_t> barrier_byte_;
};

// What DevicePlugin::Connect gives; it does not wait for other ranks. `api` outlives it.
DeviceConnection ConnectNccl(const nccl::NcclApi* api, const DevicePeers& peers);

}  // namespace mydist
