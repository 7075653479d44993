#include "memory/shm/free_extents.h"

#include <iterator>

namespace mydist::shm {

std::optional<int64_t> FreeExtents::Take(int64_t bytes, int64_t alignment) {
  for (auto it = ends_.begin(); it != ends_.end(); ++it) {
    const auto [begin, end] = *it;
    const int64_t offset = (begin + alignment - 1) / alignment * alignment;
    if (end - offset < bytes) continue;
    ends_.erase(it);
    if (begin < offset) ends_[begin] = offset;
    if (offset + bytes < end) ends_[offset + bytes] = end;
    return offset;
  }
  return std::nullopt;
}

Extent FreeExtents::Give(const Extent& extent) {
  Extent merged = extent;
  auto next = ends_.lower_bound(extent.begin);
  if (next != ends_.end() && next->first == extent.end) {
    merged.end = next->second;
    next = ends_.erase(next);
  }
  if (next != ends_.begin() && std::prev(next)->second == extent.begin) {
    merged.begin = std::prev(next)->first;
    ends_.erase(std::prev(next));
  }
  ends_[merged.begin] = merged.end;
  return merged;
}

}  // namespace mydist::shm
