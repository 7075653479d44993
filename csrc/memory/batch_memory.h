// BatchMemory: where the tensors of a batch lie: how they are packed there, and into what (fuse).
// One for the host and one for each GPU, owned by the engine, used by whoever drives it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "base/result.h"
#include "kernels/conversion.h"
#include "memory/fusion_buffer.h"

namespace mydist {

class BatchMemory {
 public:
  virtual ~BatchMemory() = default;

  // See FusionBuffer::Reserve.
  virtual Result<uint8_t*> Reserve(int64_t bytes) = 0;

  // See ConvertElements. On a GPU it is done in order, maybe later; the list is not used any more.
  virtual Status Convert(std::span<const ConvertSegment> segments,
                         const Conversion& conversion) = 0;

  // Of what Reserve gives.
  virtual int64_t capacity_bytes() const = 0;
};

class HostMemory final : public BatchMemory {
 public:
  // As in FusionBuffer.
  explicit HostMemory(MemorySource preferred = nullptr) : buffer_(std::move(preferred)) {}

  Result<uint8_t*> Reserve(int64_t bytes) override { return buffer_.Reserve(bytes); }
  Status Convert(std::span<const ConvertSegment> segments, const Conversion& conversion) override {
    ConvertElements(segments, conversion);
    return Status::Ok();
  }

  int64_t capacity_bytes() const override { return buffer_.capacity_bytes(); }

 private:
  FusionBuffer buffer_;
};

}  // namespace mydist
