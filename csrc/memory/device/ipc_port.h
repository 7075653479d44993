// IpcPort: how a GPU of this process and those of others on the host reach into each other's
// memory, and the kernel that does (reduce). Part of a Device, outlived by it. Implemented by the
// CUDA plugin, and by a stand-in in host memory for tests. Any thread. Errors: kInternal with the
// driver's words.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "memory/device/ipc_board.h"

namespace mydist {

struct StreamHandle;

// Names memory for other processes of the host; what is in it is the driver's.
struct IpcHandle {
  std::array<uint8_t, 64> bytes{};
};

struct ExportedBoard {
  uint8_t* memory = nullptr;  // kIpcBoardBytes.
  IpcHandle handle{};
};

// What the kernel finds on a GPU.
struct IpcRoom {
  // How many of its blocks, of the kind that needs most, are there at the same time.
  int blocks = 0;
  // One that drives a display ends what runs for long, and all that its process has on it.
  bool ends_long_kernels = false;
};

class IpcPort {
 public:
  virtual ~IpcPort() = default;

  // A board whose flags are 0. May wait for the device. It stays where it is until the process
  // ends: a rank that is lost, or late, may still have it open.
  virtual Result<ExportedBoard> Export() = 0;
  // No rank reads or writes it any more: it may be exported again.
  virtual void Recycle(const ExportedBoard& board) = 0;

  // The board of another process, on the same GPU or on one that this one reaches; open until
  // nobody has it. May wait for the device. Fails where GPUs or processes are kept apart.
  virtual Result<std::shared_ptr<uint8_t>> Open(const IpcHandle& handle) = 0;

  virtual Result<IpcRoom> Room() = 0;

  // Puts the kernel on the stream, whose place it keeps until all ranks have met it, or until the
  // abort word is set. Waits for nobody.
  virtual Status Allreduce(const IpcAllreduce& job, StreamHandle stream) = 0;
};

}  // namespace mydist
