// ArenaHeap: memory that all ranks of the host map, allocated by one rank without a word to the
// others. Shared by the Arena and by every buffer from it, so a buffer may outlive the engine.
// Thread-safe. Each rank allocates in its own zone and sees the zones of all; ranks are indices in
// the arena.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "base/export.h"
#include "base/mutex.h"
#include "base/result.h"
#include "ops/shm/arena_file.h"
#include "ops/shm/free_extents.h"

namespace mydist::shm {

class MYDIST_EXPORT ArenaHeap : public std::enable_shared_from_this<ArenaHeap> {
 public:
  // Where the zones lie in the file.
  struct Zones {
    int64_t base = 0;  // Offset of the first, a multiple of kHeapGrainBytes.
    int64_t zone_bytes = 0;
    int count = 0;
  };

  // Maps all zones. kInternal when they cannot be mapped (no address space).
  static Result<std::shared_ptr<ArenaHeap>> Map(std::shared_ptr<ArenaFile> file, const Zones& zones,
                                                int index);
  ~ArenaHeap();
  ArenaHeap(const ArenaHeap&) = delete;
  ArenaHeap& operator=(const ArenaHeap&) = delete;

  // At least `bytes` (more than 0) of memory, aligned to kLineBytes, from one page on to
  // kPageBytes. Its pages are reserved; they read as 0 at first, and as whatever they held when
  // used again. kInternal with needed and free bytes when there is no room.
  Result<std::shared_ptr<uint8_t>> Allocate(int64_t bytes);

  // Where these bytes lie in the own zone; nothing when they are not (all) in it.
  std::optional<int64_t> OffsetOf(const void* memory, int64_t bytes) const;
  // What `rank` calls `offset`; null unless all of `bytes` are in its zone.
  uint8_t* At(int rank, int64_t offset, int64_t bytes) const;

  int64_t zone_bytes() const { return zones_.zone_bytes; }

 private:
  ArenaHeap(std::shared_ptr<ArenaFile> file, const Zones& zones, int index, uint8_t* memory);
  void Free(const Extent& extent);
  // Gives the file system back the pages of `freed`, which lies in the free extent `around`.
  void Release(const Extent& freed, const Extent& around);
  uint8_t* own_zone() const { return memory_ + index_ * zones_.zone_bytes; }
  int64_t FileOffset(int64_t offset) const {
    return zones_.base + index_ * zones_.zone_bytes + offset;
  }

  const std::shared_ptr<ArenaFile> file_;
  const Zones zones_;
  const int index_;
  uint8_t* const memory_;
  const pid_t owner_pid_;
  Mutex mutex_;
  FreeExtents free_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::shm
