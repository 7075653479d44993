// DeviceMemory: memory of a GPU for what one stream needs on the way, and packing into it (fuse).
// Grows, never shrinks. Used on that stream only, so that its next use comes behind the last. Owned
// by whoever puts the work there and used by the same thread; destroyed when the stream has passed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/export.h"
#include "memory/batch_memory.h"
#include "memory/device/device.h"
#include "memory/device/passing_memory.h"
#include "memory/device/stream_collectives.h"

namespace mydist {

class MYDIST_EXPORT DeviceMemory final : public BatchMemory {
 public:
  explicit DeviceMemory(const StreamSeat& seat) : seat_(seat) {}

  // At least `bytes` for work that is put on the stream before the next call; arbitrary content.
  // Waits for nothing but what Device::Allocate may wait for. Errors: those of Device.
  Result<uint8_t*> Reserve(int64_t bytes) override;
  Status Convert(std::span<const ConvertSegment> segments, const Conversion& conversion) override {
    return segments.empty() ? Status::Ok()
                            : seat_.device->Convert(segments, conversion, seat_.stream);
  }
  int64_t capacity_bytes() const override { return capacity_bytes_; }

 private:
  StreamSeat seat_;
  std::shared_ptr<uint8_t> memory_;
  int64_t capacity_bytes_ = 0;
  PassingMemory outgrown_;  // Too small by now, but the stream may not be through with it.
};

}  // namespace mydist
