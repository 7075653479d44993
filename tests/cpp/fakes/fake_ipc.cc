#include "fakes/fake_ipc.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "gpu/emulated_ipc.h"

namespace mydist::testing {

namespace {

std::shared_ptr<uint8_t> NewBoard() {
  return {static_cast<uint8_t*>(std::aligned_alloc(256, kIpcBoardBytes)), std::free};
}

}  // namespace

Result<ExportedBoard> FakeIpcHost::Export(int device) {
  MYDIST_RETURN_IF_ERROR(on_export(device));
  MutexLock lock(mutex_);
  ExportedBoard board;
  if (!spare_.empty()) {
    board = spare_.back();
    spare_.pop_back();
  } else {
    boards_.push_back(NewBoard());
    const size_t number = boards_.size() - 1;
    board.memory = boards_.back().get();
    std::memcpy(board.handle.bytes.data(), &number, sizeof(number));
  }
  std::memset(board.memory, 0xC7, kIpcBoardBytes);
  std::memset(board.memory, 0, kIpcFlagBytes);
  return board;
}

void FakeIpcHost::Recycle(const ExportedBoard& board) {
  MutexLock lock(mutex_);
  spare_.push_back(board);
}

Result<std::shared_ptr<uint8_t>> FakeIpcHost::Open(int device, const IpcHandle& handle) {
  MYDIST_RETURN_IF_ERROR(on_open(device));
  MutexLock lock(mutex_);
  size_t number = 0;
  std::memcpy(&number, handle.bytes.data(), sizeof(number));
  if (number >= boards_.size()) return Status::Internal("nobody has exported that");
  ++open_count_;
  std::shared_ptr<uint8_t> seen = boards_[number];
  if (has_deaf_boards) {
    seen = NewBoard();
    std::memcpy(seen.get(), boards_[number].get(), kIpcBoardBytes);
  }
  return std::shared_ptr<uint8_t>(seen.get(), [this, seen](uint8_t*) {
    MutexLock close_lock(mutex_);
    --open_count_;
  });
}

int FakeIpcHost::board_count() const {
  MutexLock lock(mutex_);
  return static_cast<int>(boards_.size());
}

int FakeIpcHost::open_count() const {
  MutexLock lock(mutex_);
  return open_count_;
}

Status FakeIpcPort::Allreduce(const IpcAllreduce& job, StreamHandle stream) {
  const int64_t bytes = job.count * SizeOf(job.reduction.dtype);
  return device_->Enqueue(stream, {.name = "the kernel between GPUs",
                                   .reads = {{job.input, bytes}},
                                   .writes = {{job.output, bytes}},
                                   .work = [this, job] {
                                     RunIpcOnHost(job);
                                     host_->on_done(device_->index(), job);
                                   }});
}

}  // namespace mydist::testing
