#include "gpu/spare_memory.h"

#include <utility>

namespace mydist::nccl {
namespace {

// Sizes are rounded up, so that a buffer that grows or shrinks by little finds its old block.
constexpr int64_t kStepBytes = 4096;

int64_t RoundedUp(int64_t bytes) { return (bytes + kStepBytes - 1) / kStepBytes * kStepBytes; }

}  // namespace

Result<SpareMemory::Block> SpareMemory::Find(int64_t bytes) {
  {
    MutexLock lock(mutex_);
    const auto found = spares_.lower_bound(bytes);
    if (found != spares_.end() && found->first / 2 <= bytes) {
      const Block block{found->second, found->first};
      spares_.erase(found);
      return block;
    }
  }
  Result<uint8_t*> fresh = source_.get(bytes);
  if (!fresh.ok()) {
    GiveBackSpares();
    fresh = source_.get(bytes);
  }
  if (!fresh.ok() && source_.ask_others) {
    source_.ask_others();
    fresh = source_.get(bytes);
  }
  if (!fresh.ok()) return fresh.status();
  return Block{*fresh, bytes};
}

Result<std::shared_ptr<uint8_t>> SpareMemory::Take(int64_t bytes) {
  if (bytes < 0) {
    return Status::InvalidArgument("got " + std::to_string(bytes) + " bytes, expected 0 or more");
  }
  if (bytes == 0) return std::shared_ptr<uint8_t>();
  MYDIST_ASSIGN_OR_RETURN(const Block block, Find(RoundedUp(bytes)));
  return std::shared_ptr<uint8_t>(block.data, [this, block](uint8_t*) { Keep(block); });
}

void SpareMemory::Keep(const Block& block) {
  MutexLock lock(mutex_);
  spares_.emplace(block.bytes, block.data);
}

void SpareMemory::GiveBackSpares() {
  std::multimap<int64_t, uint8_t*> spares;
  {
    MutexLock lock(mutex_);
    spares.swap(spares_);
  }
  for (const auto& [bytes, data] : spares) source_.give_back(data);
}

}  // namespace mydist::nccl
