// FreeExtents: which parts of a stretch of memory are free. First fit; neighbours merge. Pure.
// Owned by the ArenaHeap, under its mutex.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace mydist::shm {

struct Extent {
  int64_t begin = 0;  // Offsets in bytes; the end is not part of it.
  int64_t end = 0;

  bool operator==(const Extent&) const = default;
};

class FreeExtents {
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

}  // namespace mydist::shm
