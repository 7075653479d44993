// FakeIpcHost: the memory that fake devices of one host export and open, and FakeIpcPort, which
// runs the kernel's own code on a device's stream. Owned by the test, outlives the devices. Any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "fakes/fake_device.h"
#include "memory/device/ipc_port.h"

namespace mydist::testing {

class FakeIpcHost {
 public:
  // Of the GPU `device`; set before it is used.
  std::function<Status(int device)> on_export = [](int) { return Status::Ok(); };
  std::function<Status(int device)> on_open = [](int) { return Status::Ok(); };
  std::function<IpcRoom(int device)> room = [](int) {
    return IpcRoom{.blocks = kMaxIpcRanks * kMaxIpcBlocks};
  };
  // After the kernel's work on that GPU.
  std::function<void(int device, const IpcAllreduce& job)> on_done = [](int, const auto&) {};
  // Boards are opened, and what is written there goes elsewhere.
  bool has_deaf_boards = false;

  Result<ExportedBoard> Export(int device) MYDIST_EXCLUDES(mutex_);
  void Recycle(const ExportedBoard& board) MYDIST_EXCLUDES(mutex_);
  Result<std::shared_ptr<uint8_t>> Open(int device, const IpcHandle& handle)
      MYDIST_EXCLUDES(mutex_);

  int board_count() const MYDIST_EXCLUDES(mutex_);  // Of all that were ever made.
  int open_count() const MYDIST_EXCLUDES(mutex_);   // Of those that somebody has open.

 private:
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<uint8_t>> boards_ MYDIST_GUARDED_BY(mutex_);
  std::vector<ExportedBoard> spare_ MYDIST_GUARDED_BY(mutex_);
  int open_count_ MYDIST_GUARDED_BY(mutex_) = 0;
};

class FakeIpcPort final : public IpcPort {
 public:
  FakeIpcPort(FakeIpcHost* host, FakeDevice* device) : host_(host), device_(device) {}

  Result<ExportedBoard> Export() override { return host_->Export(device_->index()); }
  void Recycle(const ExportedBoard& board) override { host_->Recycle(board); }
  Result<std::shared_ptr<uint8_t>> Open(const IpcHandle& handle) override {
    return host_->Open(device_->index(), handle);
  }
  Result<IpcRoom> Room() override { return host_->room(device_->index()); }
  // The device sees its own memory only; what ranks do on boards is for thread sanitizer.
  Status Allreduce(const IpcAllreduce& job, StreamHandle stream) override;

 private:
  FakeIpcHost* const host_;
  FakeDevice* const device_;
};

}  // namespace mydist::testing
