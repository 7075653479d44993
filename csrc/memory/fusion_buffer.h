// FusionBuffer: persistent memory that only grows, for fused batches and for what peers send.
// Owned by the engine (fusing) and by a Collectives (scratch), used by the thread that drives the
// engine. Once it has seen the largest batch, no call allocates any more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "base/export.h"
#include "base/status.h"
#include "kernels/conversion.h"

namespace mydist {

// BatchMemory: where the tensors of a batch lie: how they are packed there, and into what (fuse).
// One for the host and one for each GPU, owned by the engine, used by the thread that drives it.

class BatchMemory {
 public:
  static constexpr int64_t kAlignmentBytes = 64;

  virtual ~BatchMemory() = default;

  // At least `bytes` of memory aligned to kAlignmentBytes, valid until the next Reserve; what it
  // held is lost when it grows. Never null when bytes > 0. kInternal when there is no such memory.
  virtual Result<uint8_t*> Reserve(int64_t bytes) = 0;

  // See ConvertElements. On a GPU it is done in order, maybe later; the list is not used any more.
  virtual Status Convert(std::span<const ConvertSegment> segments,
                         const Conversion& conversion) = 0;

  // Of what Reserve gives.
  virtual int64_t capacity_bytes() const = 0;
};

// Gives memory aligned to FusionBuffer::kAlignmentBytes, or null.
using MemorySource = std::function<std::shared_ptr<uint8_t>(int64_t bytes)>;

class MYDIST_EXPORT FusionBuffer final : public BatchMemory {
 public:
  // `preferred` is asked first; null, or where it has none: private memory.
  explicit FusionBuffer(MemorySource preferred = nullptr) : preferred_(std::move(preferred)) {}

  Result<uint8_t*> Reserve(int64_t bytes) override;
  Status Convert(std::span<const ConvertSegment> segments, const Conversion& conversion) override {
    ConvertElements(segments, conversion);
    return Status::Ok();
  }
  int64_t capacity_bytes() const override { return capacity_bytes_; }

 private:
  const MemorySource preferred_;
  std::shared_ptr<uint8_t> memory_;
  int64_t capacity_bytes_ = 0;
};

}  // namespace mydist
