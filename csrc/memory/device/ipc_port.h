// IpcPort: how a GPU of this process and those of others on the host reach into each other's
// memory, and the kernel that does (reduce). Part of a Device, outlived by it. Implemented by the
// CUDA plugin, and by a stand-in in host memory for tests. Any thread. Errors: kInternal with the
// driver's words.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/export.h"
#include "base/status.h"
#include "kernels/reduction.h"

namespace mydist {

// IpcBoard: the piece of GPU memory that each rank of a set lets the others read and write: flags
// in front, then two halves for data, which launches use by turns. Pure layout, the same in every
// process. A flag says how far its writer has come: it has one writer, one reader (the owner of the
// board) and a line of its own, and only ever grows.

inline constexpr int kMaxIpcRanks = 8;
// Block b of a launch meets block b of every other rank's launch, and no other: so they need not
// all be on the GPU at once. Few, as they keep their places on it while they wait.
inline constexpr int kMaxIpcBlocks = 32;
// How often blocks meet in one launch, at most.
inline constexpr int kIpcMeetings = 2;

inline constexpr int64_t kIpcLineBytes = 128;
inline constexpr int64_t kIpcFlagBytes =
    kIpcLineBytes * kIpcMeetings * kMaxIpcBlocks * kMaxIpcRanks;
// Whole pages of the GPU: what is exported is always a page, so nothing else is.
inline constexpr int64_t kIpcBoardBytes = int64_t{4} << 20;
inline constexpr int64_t kIpcHalfBytes = (kIpcBoardBytes - kIpcFlagBytes) / 2;
static_assert(kIpcHalfBytes % kIpcLineBytes == 0);

// Where on a board the flag is that rank `writer` sets.
MYDIST_HOST_DEVICE constexpr int64_t IpcFlagOffset(int meeting, uint32_t block, int writer) {
  const int64_t line = (int64_t{meeting} * kMaxIpcBlocks + block) * kMaxIpcRanks + writer;
  return line * kIpcLineBytes;
}

MYDIST_HOST_DEVICE constexpr int64_t IpcHalfOffset(uint64_t epoch) {
  return kIpcFlagBytes + static_cast<int64_t>(epoch % 2) * kIpcHalfBytes;
}

// One launch of this rank's kernel. All ranks of the set make the same, in the same order, with
// boards, rank, input, output and abort_word of their own.
struct IpcAllreduce {
  const void* input = nullptr;
  void* output = nullptr;  // May be the input, else they do not overlap.
  int64_t count = 0;       // At most kIpcHalfBytes; 0: ranks only meet.
  Reduction reduction{};   // Resolved.
  bool in_two_shots = false;
  int most_blocks = kMaxIpcBlocks;  // The same on all ranks; at least 1.
  int rank = 0;
  int size = 1;
  // By rank, as this process sees them.
  std::array<uint8_t*, kMaxIpcRanks> boards{};
  uint64_t epoch = 0;  // 1, 2, …: 64 bits do not wrap around.
  // In pinned memory; once it is not 0 the kernel stops waiting and ends without a result.
  const uint32_t* abort_word = nullptr;
};

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
