#include "algorithms/device/chunk_plan.h"

#include <algorithm>

namespace mydist {

int ChunkCount(int64_t bytes, const StagingLimits& limits) {
  if (bytes == 0) return 0;
  const int64_t wanted =
      std::min<int64_t>(limits.chunks_in_flight, bytes / limits.least_chunk_bytes);
  const int64_t needed =
      bytes / limits.most_chunk_bytes + (bytes % limits.most_chunk_bytes != 0 ? 1 : 0);
  return static_cast<int>(std::max({int64_t{1}, wanted, needed}));
}

void CutParts(std::span<const int64_t> counts, int64_t element_bytes, int chunk_count, int chunk,
              std::vector<ChunkPiece>& pieces) {
  pieces.clear();
  int64_t part_begin = 0;
  int64_t staged_begin = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const Slice slice = EvenSlice(counts[rank], element_bytes, chunk_count, chunk);
    pieces.push_back({static_cast<int>(rank), part_begin + slice.offset, slice.offset, staged_begin,
                      slice.count});
    part_begin += counts[rank];
    staged_begin += slice.count;
  }
}

void GroupTensors(std::span<const int64_t> counts, int64_t element_bytes, int64_t group_bytes,
                  std::vector<TensorGroup>& groups) {
  groups.clear();
  int64_t offset = 0;
  for (size_t tensor = 0; tensor < counts.size(); ++tensor) {
    const bool is_full =
        groups.empty() || groups.back().elements.count * element_bytes >= group_bytes;
    if (is_full) groups.push_back({tensor, 0, {offset, 0}});
    ++groups.back().tensor_count;
    groups.back().elements.count += counts[tensor];
    offset += counts[tensor];
  }
}

}  // namespace mydist
