// ArenaHeap: memory that all ranks of the host map, allocated by one rank without a word to the
// others. Shared by the Arena and by every buffer from it, so a buffer may outlive the engine.
// Thread-safe. Each rank allocates in its own zone and sees the zones of all; ranks are indices in
// the arena. A forked child is no rank: it gets memory of its own in the same place.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"
#include "memory/shm/arena_file.h"

namespace mydist::shm {

// ForkedHeaps: the heaps of this process, so that fork() gives a child memory of its own in place
// of what it would otherwise share with its parent and the other ranks, such as the gradients. A
// child that trains or zeroes a copy of the model must not write into the parent's. Any thread;
// registers itself with the C library when the first heap is added.
class ArenaHeap;

namespace forked_heaps {

// Until it is removed, which does nothing for one that is not there.
void Add(ArenaHeap* heap);
void Remove(ArenaHeap* heap);

}  // namespace forked_heaps

struct Extent {
  int64_t begin = 0;  // Offsets in bytes; the end is not part of it.
  int64_t end = 0;

  bool operator==(const Extent&) const = default;
};

// FreeExtents: which parts of a stretch of memory are free. First fit; neighbours merge. Pure.
// Owned by what gives the memory out, under its mutex.
class MYDIST_EXPORT FreeExtents {
 public:
  explicit FreeExtents(int64_t bytes) {
    if (bytes > 0) ends_[0] = bytes;
  }

  // Where `bytes` (more than 0) were taken, at a multiple of `alignment`; nothing when there is no
  // such room.
  std::optional<int64_t> Take(int64_t bytes, int64_t alignment);
  // Gives back what was taken; what is free around it now, in one piece.
  Extent Give(const Extent& extent);

 private:
  std::map<int64_t, int64_t> ends_;  // Of each free extent, by its begin; no two touch.
};

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

  // What a forked child finds in the place of memory that was allocated here.
  enum class InForkedChild {
    kCopy,     // Its own, with the values there were.
    kNothing,  // Touching it is a fault.
  };

  // At least `bytes` (more than 0) of memory, aligned to kLineBytes, from one page on to
  // kPageBytes. Its pages are reserved; they read as 0 at first, and as whatever they held when
  // used again. kInternal with needed and free bytes when there is no room, but for what
  // is left to others.
  Result<std::shared_ptr<uint8_t>> Allocate(int64_t bytes,
                                            InForkedChild in_child = InForkedChild::kCopy);

  // OK, or what Allocate is going to say if all ranks need so much.
  Status CheckRoom(int64_t bytes) const;

  // Where these bytes lie in the own zone; nothing when they are not (all) in it.
  std::optional<int64_t> OffsetOf(const void* memory, int64_t bytes) const;
  // What `rank` calls `offset`; null unless all of `bytes` are in its zone.
  uint8_t* At(int rank, int64_t offset, int64_t bytes) const;

  int64_t zone_bytes() const { return zones_.zone_bytes; }

  // Around a fork; see forked_heaps. The copies are made before it, as afterwards other threads
  // of the parent go on writing.
  void BeforeFork() MYDIST_ACQUIRE(mutex_);
  void AfterForkInParent() MYDIST_RELEASE(mutex_);
  void AfterForkInChild() MYDIST_RELEASE(mutex_);

 private:
  ArenaHeap(std::shared_ptr<ArenaFile> file, const Zones& zones, int index, uint8_t* memory);
  void Free(const Extent& extent);
  // Whole pages, of which something is to be copied for children.
  std::vector<Extent> CopiedPages() const MYDIST_REQUIRES(mutex_);
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
  std::map<int64_t, int64_t> copied_ MYDIST_GUARDED_BY(mutex_);  // Ends by begins.
  // Between BeforeFork and after: the copied pages one after the other; null: no memory for them.
  uint8_t* copy_ MYDIST_GUARDED_BY(mutex_) = nullptr;
  int64_t copy_bytes_ MYDIST_GUARDED_BY(mutex_) = 0;
};

}  // namespace mydist::shm
