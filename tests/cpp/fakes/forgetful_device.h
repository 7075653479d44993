// ForgetfulDevice: a device that does not do one of the things it is asked for to keep an order.
// With it in between, the device behind it has to find a violation, or nothing would.
#pragma once

#include <string>

#include "memory/device/device.h"

namespace mydist::testing {

// Which Wait, or which Block, is dropped; the first has number 0, none -1.
struct Forgotten {
  int64_t wait = -1;
  int64_t block = -1;
};

class ForgetfulDevice final : public Device {
 public:
  ForgetfulDevice(Device* device, const Forgotten& forgotten)
      : device_(device), forgotten_(forgotten) {}

  int64_t wait_count() const { return wait_count_; }
  int64_t block_count() const { return block_count_; }

  int index() const override { return device_->index(); }
  std::string identity() const override { return device_->identity(); }
  Result<StreamHandle> CreateStream() override { return device_->CreateStream(); }
  Result<std::shared_ptr<uint8_t>> Allocate(int64_t bytes) override {
    return device_->Allocate(bytes);
  }
  Result<std::shared_ptr<uint8_t>> AllocatePinned(int64_t bytes) override {
    return device_->AllocatePinned(bytes);
  }
  Result<EventPointer> Record(StreamHandle stream) override { return device_->Record(stream); }
  Status Wait(StreamHandle stream, const DeviceEvent& event) override {
    return wait_count_++ == forgotten_.wait ? Status::Ok() : device_->Wait(stream, event);
  }
  Result<bool> IsOver(const DeviceEvent& event) override { return device_->IsOver(event); }
  Status Block(const DeviceEvent& event) override {
    return block_count_++ == forgotten_.block ? Status::Ok() : device_->Block(event);
  }
  Status Copy(void* target, const void* source, int64_t bytes, StreamHandle stream) override {
    return device_->Copy(target, source, bytes, stream);
  }
  Status Convert(std::span<const ConvertSegment> segments, const Conversion& conversion,
                 StreamHandle stream) override {
    return device_->Convert(segments, conversion, stream);
  }

 private:
  Device* const device_;
  const Forgotten forgotten_;
  int64_t wait_count_ = 0;
  int64_t block_count_ = 0;
};

}  // namespace mydist::testing
