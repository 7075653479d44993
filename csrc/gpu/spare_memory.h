// SpareMemory: keeps blocks that are expensive to get and to give back for their next use. Freeing
// device memory or pinned memory waits for everything the device does; so nothing is freed before
// the device is closed, or memory is short. Owned by one device, outlives what it gave out.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"

namespace mydist::nccl {

class SpareMemory {
 public:
  // How a block of so many bytes is had, and given back. Get fails with any status; the spare
  // blocks are then given back and it is asked once more. Should that fail, too, others are asked
  // for what they can do without, and then for the last time.
  struct Source {
    std::function<Result<uint8_t*>(int64_t bytes)> get;
    std::function<void(uint8_t*)> give_back;
    std::function<void()> ask_others{};  // May be null. Without a lock.
  };
  explicit SpareMemory(Source source) : source_(std::move(source)) {}
  ~SpareMemory() { GiveBackSpares(); }
  SpareMemory(const SpareMemory&) = delete;
  SpareMemory& operator=(const SpareMemory&) = delete;

  // Null when bytes is 0. A spare block is taken when it is at most twice as large. Whoever lets go
  // of one makes sure that nothing uses it.
  Result<std::shared_ptr<uint8_t>> Take(int64_t bytes);

  void GiveBackSpares();

 private:
  struct Block {
    uint8_t* data;
    int64_t bytes;
  };
  Result<Block> Find(int64_t bytes);
  void Keep(const Block& block);

  const Source source_;
  Mutex mutex_;
  std::multimap<int64_t, uint8_t*> spares_ MYDIST_GUARDED_BY(mutex_);  // By size.
};

}  // namespace mydist::nccl
