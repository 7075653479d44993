// FakePlugin: the GPUs of one rank, as a plugin offers them: fake devices, and the FakeNccl of the
// test where the rank has one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "algorithms/device/device_plugin.h"
#include "gpu/nccl_collectives.h"
#include "gpu/nccl_streams.h"

namespace mydist::testing {

struct FakePluginParts {
  std::vector<std::shared_ptr<FakeDevice>> devices;  // By index.
  Result<int> nccl_version = Status::Internal("this rank was given no NCCL");
  FakeNccl* nccl = nullptr;
  NcclStreams* streams = nullptr;
};

class FakePlugin final : public DevicePlugin {
 public:
  explicit FakePlugin(FakePluginParts parts) : parts_(std::move(parts)) {}

  std::string name() const override { return "fake"; }
  Result<int> DeviceCount() override { return static_cast<int>(parts_.devices.size()); }
  Result<std::shared_ptr<Device>> OpenDevice(int index) override {
    return std::shared_ptr<Device>(parts_.devices.at(static_cast<size_t>(index)));
  }
  Result<int> NcclVersion(const NcclPlaces&) override { return parts_.nccl_version; }
  Result<DeviceConnection> Connect(const DevicePeers& peers, const NcclPlaces&) override {
    for (const auto& device : parts_.devices) {
      if (device.get() == peers.seat.device) {
        parts_.streams->Add(peers.seat.stream, device.get());
        return ConnectNccl(&parts_.nccl->api(), peers);
      }
    }
    return Status::Internal("a device of another plugin");
  }
  Result<std::string> Description(const NcclPlaces&) override { return std::string("fake"); }

 private:
  const FakePluginParts parts_;
};

}  // namespace mydist::testing
