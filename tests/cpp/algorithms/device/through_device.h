// ThroughDevice: any Collectives on device memory, used with host memory: what the conformance
// suites have is copied to a fake device and back. Inputs and outputs that share memory do so
// there, too; inputs must come back as they went.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "algorithms/collectives.h"
#include "fakes/fake_device.h"

namespace mydist::testing {

class ThroughDevice final : public Collectives {
 public:
  // Whether a call that puts its work on the stream may wait for the device.
  enum class HostBlocks { kAllowed, kNever };

  // All outlive this. `on_device` is made for `stream`; we are `rank` there.
  ThroughDevice(FakeDevice* device, StreamHandle stream, int rank, Collectives* on_device,
                HostBlocks blocks = HostBlocks::kAllowed)
      : device_(device), stream_(stream), rank_(rank), on_device_(on_device), blocks_(blocks) {}

  bool Supports(const BatchTraits& traits) const override { return on_device_->Supports(traits); }

  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override {
    return Run({}, {data, count * SizeOf(reduction.dtype)}, [&](const uint8_t*, uint8_t* output) {
      return on_device_->Allreduce(output, count, reduction);
    });
  }

  Status AdasumAllreduce(void* data, std::span<const int64_t> counts,
                         const Reduction& reduction) override {
    return Run({}, {data, TotalOf(counts) * SizeOf(reduction.dtype)},
               [&](const uint8_t*, uint8_t* output) {
                 return on_device_->AdasumAllreduce(output, counts, reduction);
               });
  }

  Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                int root) override {
    const int64_t bytes = count * SizeOf(reduction.dtype);
    return Run({input, bytes}, {output, bytes}, [&](const uint8_t* source, uint8_t* target) {
      return on_device_->Reduce(source, target, count, reduction, root);
    });
  }

  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts) override {
    return Run({input, Own(byte_counts)}, {output, TotalOf(byte_counts)},
               [&](const uint8_t* source, uint8_t* target) {
                 return on_device_->Allgather(source, target, byte_counts);
               });
  }

  Status Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                int root) override {
    return Run({input, Own(byte_counts)}, {output, rank_ == root ? TotalOf(byte_counts) : 0},
               [&](const uint8_t* source, uint8_t* target) {
                 return on_device_->Gather(source, target, byte_counts, root);
               });
  }

  Status Scatter(const void* input, std::span<const int64_t> byte_counts, void* output,
                 int root) override {
    return Run({input, rank_ == root ? TotalOf(byte_counts) : 0}, {output, Own(byte_counts)},
               [&](const uint8_t* source, uint8_t* target) {
                 return on_device_->Scatter(source, byte_counts, target, root);
               });
  }

  Status Send(const void* data, int64_t bytes, int peer) override {
    return Run({data, bytes}, {}, [&](const uint8_t* source, uint8_t*) {
      return on_device_->Send(source, bytes, peer);
    });
  }

  Status Receive(void* data, int64_t bytes, int peer) override {
    return Run({}, {data, bytes}, [&](const uint8_t*, uint8_t* target) {
      return on_device_->Receive(target, bytes, peer);
    });
  }

  Status Broadcast(void* data, int64_t bytes, int root) override {
    return Run({}, {data, bytes}, [&](const uint8_t*, uint8_t* target) {
      return on_device_->Broadcast(target, bytes, root);
    });
  }

  Status Alltoall(const void* input, std::span<const int64_t> send_bytes, void* output,
                  std::span<const int64_t> receive_bytes) override {
    return Run({input, TotalOf(send_bytes)}, {output, TotalOf(receive_bytes)},
               [&](const uint8_t* source, uint8_t* target) {
                 return on_device_->Alltoall(source, send_bytes, target, receive_bytes);
               });
  }

  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction) override {
    const int64_t element_bytes = SizeOf(reduction.dtype);
    return Run({input, TotalOf(counts) * element_bytes}, {output, Own(counts) * element_bytes},
               [&](const uint8_t* source, uint8_t* target) {
                 return on_device_->Reducescatter(source, target, counts, reduction);
               });
  }

  Status Barrier() override { return on_device_->Barrier(); }

 private:
  struct Input {
    const void* data = nullptr;
    int64_t bytes = 0;
  };
  struct Output {
    void* data = nullptr;
    int64_t bytes = 0;
  };

  static int64_t TotalOf(std::span<const int64_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
  int64_t Own(std::span<const int64_t> counts) const { return counts[static_cast<size_t>(rank_)]; }

  // The one within the other, or apart.
  template <typename Call>
  Status Run(const Input& input, const Output& output, Call unwatched) {
    const auto call = [&](const uint8_t* source, uint8_t* target) {
      const int64_t blocks = device_->counts().blocks;
      const Status status = unwatched(source, target);
      if (blocks_ == HostBlocks::kNever) {
        EXPECT_EQ(device_->counts().blocks, blocks) << "the host has waited for the device";
      }
      return status;
    };
    const auto* in = static_cast<const uint8_t*>(input.data);
    auto* out = static_cast<uint8_t*>(output.data);
    if (input.bytes > 0 && in >= out && in + input.bytes <= out + output.bytes) {
      return RunOn(out, output.bytes, true,
                   [&](uint8_t* memory) { return call(memory + (in - out), memory); });
    }
    if (output.bytes > 0 && out >= in && out + output.bytes <= in + input.bytes) {
      return RunOn(const_cast<uint8_t*>(in), input.bytes, true,
                   [&](uint8_t* memory) { return call(memory, memory + (out - in)); });
    }
    return RunOn(const_cast<uint8_t*>(in), input.bytes, false, [&](uint8_t* source) {
      return RunOn(out, output.bytes, true, [&](uint8_t* target) { return call(source, target); });
    });
  }

  // `call` with the bytes on the device, and null for none; what may not have changed is compared.
  template <typename Call>
  Status RunOn(uint8_t* data, int64_t bytes, bool may_change, Call call) {
    const auto size = static_cast<size_t>(bytes);
    MYDIST_ASSIGN_OR_RETURN(const std::shared_ptr<uint8_t> pinned, device_->AllocatePinned(bytes));
    MYDIST_ASSIGN_OR_RETURN(const std::shared_ptr<uint8_t> memory, device_->Allocate(bytes));
    if (bytes > 0) {
      MYDIST_RETURN_IF_ERROR(device_->HostWrites(pinned.get(), bytes, "what goes in"));
      std::memcpy(pinned.get(), data, size);
    }
    MYDIST_RETURN_IF_ERROR(device_->Copy(memory.get(), pinned.get(), bytes, stream_));
    const Status status = call(memory.get());
    MYDIST_RETURN_IF_ERROR(device_->Copy(pinned.get(), memory.get(), bytes, stream_));
    MYDIST_ASSIGN_OR_RETURN(const EventPointer end, device_->Record(stream_));
    MYDIST_RETURN_IF_ERROR(device_->Block(*end));
    if (bytes > 0) {
      MYDIST_RETURN_IF_ERROR(device_->HostReads(pinned.get(), bytes, "what came out"));
      if (may_change) {
        std::memcpy(data, pinned.get(), size);
      } else {
        EXPECT_EQ(std::memcmp(data, pinned.get(), size), 0) << "input was changed";
      }
    }
    return status;
  }

  FakeDevice* const device_;
  const StreamHandle stream_;
  const int rank_;
  Collectives* const on_device_;
  const HostBlocks blocks_;
};

}  // namespace mydist::testing
