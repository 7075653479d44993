// NotedTransport: a transport that takes device memory, as a CUDA-aware MPI does, and tells a fake
// device what it is about to read and write there; where that is a mistake nothing is moved.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "fakes/fake_device.h"
#include "fakes/forwarding.h"

namespace mydist::testing {

class NotedTransport final : public ForwardingTransport {
 public:
  NotedTransport(FakeDevice* device, std::unique_ptr<Transport> inner)
      : ForwardingTransport(std::move(inner)), device_(device) {}

  bool TakesDeviceMemory() const override { return true; }

  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    for (const SendTransfer& send : sends) {
      MYDIST_RETURN_IF_ERROR(device_->NetworkReads(send.data, send.bytes));
    }
    for (const ReceiveTransfer& receive : receives) {
      MYDIST_RETURN_IF_ERROR(device_->NetworkWrites(receive.data, receive.bytes));
    }
    return ForwardingTransport::Exchange(sends, receives);
  }

 private:
  FakeDevice* const device_;
};

}  // namespace mydist::testing
