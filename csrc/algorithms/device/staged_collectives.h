// StagedCollectives: collectives on device memory over any that work on host memory (reduce).
// Owned by the engine, made for one stream of a device; driven by one thread at a time. Tensors
// pass through pinned memory in chunks, so that the copies in both directions and the network
// overlap; chunks are cut alike on all ranks, and the bits are those of the host's collectives on
// the whole tensor. A call returns when the network is done with it: the host waits for what it has
// to send, and the stream for what is copied back. Not cut, and so held in host memory as a whole:
// a tensor in AdasumAllreduce, and what a rank sends or gets in Scatter and Alltoall, where ranks
// do not know each other's sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "algorithms/collectives.h"
#include "algorithms/device/staging_pipeline.h"
#include "base/export.h"
#include "memory/device/device_memory.h"

namespace mydist {

class MYDIST_EXPORT StagedCollectives final : public Collectives {
 public:
  // `inner` spans the same ranks on host memory; among them we are `rank`. On all of them the
  // pipeline has the same limits. It may be shared by several of these on one stream.
  StagedCollectives(int rank, std::unique_ptr<Collectives> inner,
                    std::shared_ptr<StagingPipeline> pipeline);

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
  // Of the ranks; what is on the stream goes on.
  Status Barrier() override { return inner_->Barrier(); }

 private:
  // A tensor that each rank has all of, in even chunks.
  struct EvenTensor {
    const uint8_t* input;  // Null: nothing goes to the host.
    uint8_t* output;       // Null: nothing comes back.
    int64_t count;         // Of elements.
    int64_t element_bytes;
  };
  // Memory that is exchanged at once.
  struct WholeTensor {
    const uint8_t* input;
    int64_t input_bytes;
    uint8_t* output;
    int64_t output_bytes;
  };

  template <typename Exchange>  // Status(uint8_t* staged, int64_t count)
  Status RunEven(const EvenTensor& tensor, Exchange exchange);
  template <typename Exchange>  // Status(uint8_t* staged_input, uint8_t* staged_output)
  Status RunWhole(const WholeTensor& tensor, Exchange exchange);
  // `input` is our part; all parts go to `output`, which is null where they are not wanted.
  template <typename Exchange>  // Status(uint8_t* staged_own, uint8_t* staged, byte_counts)
  Status RunGathering(const uint8_t* input, uint8_t* output, std::span<const int64_t> byte_counts,
                      Exchange exchange);

  // Cuts all parts for chunk `chunk`; the pieces, by rank.
  const std::vector<ChunkPiece>& Cut(std::span<const int64_t> counts, int64_t element_bytes,
                                     int chunk_count, int chunk);
  std::span<const int64_t> PieceCounts();  // Of the last cut.
  int64_t LargestChunk(std::span<const int64_t> counts, int64_t element_bytes, int chunk_count);
  int CountChunks(int64_t bytes) const { return ChunkCount(bytes, pipeline_->limits()); }

  const int rank_;
  const std::unique_ptr<Collectives> inner_;
  const std::shared_ptr<StagingPipeline> pipeline_;
  // Of the chunk in progress; kept for their memory.
  std::vector<ChunkPiece> pieces_;
  std::vector<int64_t> piece_counts_;
  std::vector<TensorGroup> groups_;
};

// LoneCollectives: the collectives of a rank that is alone in its set, on device memory
// (reduce): what is left are factors and copies. Owned by the engine, made for one stream; driven
// by one thread at a time. The host never waits; the bits are those of the host's collectives.
class MYDIST_EXPORT LoneCollectives final : public Collectives {
 public:
  explicit LoneCollectives(const StreamSeat& seat) : seat_(seat), scratch_(seat) {}

  bool Supports(const BatchTraits& traits) const override;
  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override {
    return Scale(data, data, count, reduction);
  }
  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts) override {
    return Move(input, output, byte_counts[0]);
  }
  Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                int /*root*/) override {
    return Scale(input, output, count, reduction);
  }
  Status AdasumAllreduce(void* data, std::span<const int64_t> counts,
                         const Reduction& reduction) override {
    return Scale(data, data, Total(counts), reduction);
  }
  Status Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                int /*root*/) override {
    return Move(input, output, byte_counts[0]);
  }
  Status Scatter(const void* input, std::span<const int64_t> byte_counts, void* output,
                 int /*root*/) override {
    return Move(input, output, byte_counts[0]);
  }
  Status Broadcast(void*, int64_t /*bytes*/, int /*root*/) override { return Status::Ok(); }
  Status Alltoall(const void* input, std::span<const int64_t> send_bytes, void* output,
                  std::span<const int64_t> /*receive_bytes*/) override {
    return Move(input, output, send_bytes[0]);
  }
  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction) override {
    return Scale(input, output, counts[0], reduction);
  }
  Status Barrier() override { return Status::Ok(); }

 private:
  Status Move(const void* input, void* output, int64_t bytes);
  Status Scale(const void* input, void* output, int64_t count, const Reduction& reduction);

  const StreamSeat seat_;
  DeviceMemory scratch_;
};

}  // namespace mydist
