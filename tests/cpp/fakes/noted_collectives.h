// NotedCollectives: host collectives that tell a fake device which pinned memory they are about to
// read and write, and are not called where that is a mistake.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "algorithms/collectives.h"
#include "fakes/fake_device.h"
#include "kernels/element.h"

namespace mydist::testing {

class NotedCollectives final : public Collectives {
 public:
  NotedCollectives(FakeDevice* device, int rank, std::unique_ptr<Collectives> inner)
      : device_(device), rank_(rank), inner_(std::move(inner)) {}

  bool Supports(const BatchTraits& traits) const override { return inner_->Supports(traits); }

  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override {
    MYDIST_RETURN_IF_ERROR(Writes(data, count * SizeOf(reduction.dtype)));
    return inner_->Allreduce(data, count, reduction);
  }

  Status AdasumAllreduce(void* data, std::span<const int64_t> counts,
                         const Reduction& reduction) override {
    MYDIST_RETURN_IF_ERROR(Writes(data, Total(counts) * SizeOf(reduction.dtype)));
    return inner_->AdasumAllreduce(data, counts, reduction);
  }

  Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                int root) override {
    const int64_t bytes = count * SizeOf(reduction.dtype);
    MYDIST_RETURN_IF_ERROR(Reads(input, bytes));
    if (rank_ == root) MYDIST_RETURN_IF_ERROR(Writes(output, bytes));
    return inner_->Reduce(input, output, count, reduction, root);
  }

  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts) override {
    MYDIST_RETURN_IF_ERROR(Reads(input, Own(byte_counts)));
    MYDIST_RETURN_IF_ERROR(Writes(output, Total(byte_counts)));
    return inner_->Allgather(input, output, byte_counts);
  }

  Status Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                int root) override {
    MYDIST_RETURN_IF_ERROR(Reads(input, Own(byte_counts)));
    if (rank_ == root) MYDIST_RETURN_IF_ERROR(Writes(output, Total(byte_counts)));
    return inner_->Gather(input, output, byte_counts, root);
  }

  Status Scatter(const void* input, std::span<const int64_t> byte_counts, void* output,
                 int root) override {
    if (rank_ == root) MYDIST_RETURN_IF_ERROR(Reads(input, Total(byte_counts)));
    MYDIST_RETURN_IF_ERROR(Writes(output, Own(byte_counts)));
    return inner_->Scatter(input, byte_counts, output, root);
  }

  Status Send(const void* data, int64_t bytes, int peer) override {
    MYDIST_RETURN_IF_ERROR(Reads(data, bytes));
    return inner_->Send(data, bytes, peer);
  }

  Status Receive(void* data, int64_t bytes, int peer) override {
    MYDIST_RETURN_IF_ERROR(Writes(data, bytes));
    return inner_->Receive(data, bytes, peer);
  }

  Status Broadcast(void* data, int64_t bytes, int root) override {
    MYDIST_RETURN_IF_ERROR(rank_ == root ? Reads(data, bytes) : Writes(data, bytes));
    return inner_->Broadcast(data, bytes, root);
  }

  Status Alltoall(const void* input, std::span<const int64_t> send_bytes, void* output,
                  std::span<const int64_t> receive_bytes) override {
    MYDIST_RETURN_IF_ERROR(Reads(input, Total(send_bytes)));
    MYDIST_RETURN_IF_ERROR(Writes(output, Total(receive_bytes)));
    return inner_->Alltoall(input, send_bytes, output, receive_bytes);
  }

  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction) override {
    const int64_t element_bytes = SizeOf(reduction.dtype);
    MYDIST_RETURN_IF_ERROR(Reads(input, Total(counts) * element_bytes));
    MYDIST_RETURN_IF_ERROR(Writes(output, Own(counts) * element_bytes));
    return inner_->Reducescatter(input, output, counts, reduction);
  }

 private:
  Collectives* Inner(const BatchTraits&) const override { return inner_.get(); }
  Status Reads(const void* data, int64_t bytes) {
    return device_->HostReads(data, bytes, "what is sent");
  }
  Status Writes(void* data, int64_t bytes) {
    return device_->HostWrites(data, bytes, "what has come");
  }
  int64_t Own(std::span<const int64_t> counts) const { return counts[static_cast<size_t>(rank_)]; }

  FakeDevice* const device_;
  const int rank_;
  const std::unique_ptr<Collectives> inner_;
};

}  // namespace mydist::testing
