// SegmentSplit and the table of segments: how a Convert is dealt to the blocks and threads of a
// launch. Pure; written by the host (convert_plan.h), read by every thread (convert_thread.h).
// A segment is a head of single elements up to an aligned target, units (16 bytes of the wider
// side, so many elements), and a tail of single elements. Units are dealt to blocks in chunks; a
// segment's first chunk has its head, its last one its tail.
#pragma once

#include <cstdint>

#include "base/export.h"
#include "gpu/kernels/convert_element.h"

namespace mydist::cuda {

inline constexpr int kConvertThreads = 256;
// Every thread has up to four units of a chunk of this size.
inline constexpr int64_t kChunkUnits = 4 * kConvertThreads;
inline constexpr int64_t kUnitBytes = 16;
// Units begin where a sector of the target's memory does, so that no two warps share one.
inline constexpr int kTargetAlignment = 32;

// Bytes of one element of the kernel on both sides.
struct ConvertShape {
  int from_bytes;
  int to_bytes;

  MYDIST_HOST_DEVICE constexpr int UnitElements() const {
    return static_cast<int>(kUnitBytes) / (from_bytes > to_bytes ? from_bytes : to_bytes);
  }
  MYDIST_HOST_DEVICE constexpr int FromUnitBytes() const { return UnitElements() * from_bytes; }
  MYDIST_HOST_DEVICE constexpr int ToUnitBytes() const { return UnitElements() * to_bytes; }
};

template <typename From, typename To>
MYDIST_HOST_DEVICE constexpr ConvertShape ShapeOf() {
  return {static_cast<int>(sizeof(From)), static_cast<int>(sizeof(To))};
}

// At most so many elements are single at either end.
template <typename From, typename To>
inline constexpr int kMaxSingles =
    kTargetAlignment / static_cast<int>(sizeof(To)) + ShapeOf<From, To>().UnitElements();

struct SegmentSplit {
  int64_t head_count;  // Elements.
  int64_t unit_count;
  int64_t tail_count;   // Elements.
  int32_t shift_bytes;  // How far the units' sources lie behind an aligned address.
};

// With a shift a unit is cut out of two aligned words of the source, which must both lie inside the
// segment: the first and the last unit may become single elements for it.
MYDIST_HOST_DEVICE inline SegmentSplit SplitSegment(const ConvertShape& shape, uintptr_t source,
                                                    uintptr_t target, int64_t count) {
  const auto unit = static_cast<int64_t>(shape.UnitElements());
  const auto word = static_cast<uintptr_t>(shape.FromUnitBytes());
  const auto alignment = static_cast<uintptr_t>(kTargetAlignment);
  const auto gap = static_cast<int64_t>((alignment - target % alignment) % alignment);
  SegmentSplit split = {.head_count = gap / shape.to_bytes};
  if (split.head_count > count) split.head_count = count;
  split.unit_count = (count - split.head_count) / unit;
  const uintptr_t begin = source + static_cast<uintptr_t>(split.head_count * shape.from_bytes);
  split.shift_bytes = static_cast<int32_t>(begin % word);
  if (split.shift_bytes != 0) {
    if (split.unit_count > 0 && split.head_count * shape.from_bytes < split.shift_bytes) {
      split.head_count += unit;
      --split.unit_count;
    }
    const int64_t rest = count - split.head_count - split.unit_count * unit;
    const int64_t beyond = shape.FromUnitBytes() - split.shift_bytes;
    if (split.unit_count > 0 && rest * shape.from_bytes < beyond) --split.unit_count;
  }
  split.tail_count = count - split.head_count - split.unit_count * unit;
  return split;
}

// No launch has more; at the smallest chunk that is 8 TiB.
inline constexpr int64_t kMaxChunks = (int64_t{1} << 31) - 1;

MYDIST_HOST_DEVICE inline int64_t ChunksOf(const SegmentSplit& split, int64_t chunk_units) {
  return split.unit_count == 0 ? 1 : (split.unit_count + chunk_units - 1) / chunk_units;
}

// Segments as the kernel has them, none of them empty: structures of arrays, so that the search for
// a chunk's segment stays in few lines of cache. Counts are of the kernel's elements.
struct SegmentArrays {
  const uint8_t** sources;
  uint8_t** targets;
  int64_t* counts;
  uint32_t* first_chunks;  // Of each segment; begins with 0 and rises.
};

template <int kSegments>
struct SegmentTable {
  static constexpr int kCapacity = kSegments;
  const uint8_t* sources[kSegments];
  uint8_t* targets[kSegments];
  int64_t counts[kSegments];
  uint32_t first_chunks[kSegments];

  SegmentArrays Arrays() { return {sources, targets, counts, first_chunks}; }
};

inline constexpr int64_t kBytesPerSegment = 3 * 8 + 4;

// The arrays of `capacity` segments in one piece of memory of capacity × kBytesPerSegment bytes,
// aligned to 8.
inline SegmentArrays ArraysIn(void* memory, int64_t capacity) {
  auto* bytes = static_cast<uint8_t*>(memory);
  return {.sources = reinterpret_cast<const uint8_t**>(bytes),
          .targets = reinterpret_cast<uint8_t**>(bytes + 8 * capacity),
          .counts = reinterpret_cast<int64_t*>(bytes + 16 * capacity),
          .first_chunks = reinterpret_cast<uint32_t*>(bytes + 24 * capacity)};
}

// What a launch says besides its segments.
struct ConvertLaunch {
  uint32_t segment_count = 0;
  uint32_t chunk_count = 0;
  uint32_t chunk_units = 0;
  ElementScaling scaling;
};

// The last segment that begins with this chunk or before.
template <typename Table>
MYDIST_HOST_DEVICE inline uint32_t SegmentOfChunk(const Table& table, uint32_t segment_count,
                                                  uint32_t chunk) {
  uint32_t low = 0;
  uint32_t high = segment_count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (table.first_chunks[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace mydist::cuda
