// ConvertPlan: how a Convert is dealt to launches, blocks and threads. The host writes a
// ConvertLaunch, and each thread reads its part out of it; no thread needs another. Pure; tests run
// both sides on the host.
// A segment is a head of single elements up to an aligned target, units (16 bytes of the wider
// side, so many elements), and a tail of single elements. A chunk is what one block does: units of
// one segment. The first chunk of a segment has its head, the last one its tail.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/export.h"
#include "base/status.h"
#include "gpu/kernels/convert_element.h"

namespace mydist::cuda {

inline constexpr int kConvertThreads = 256;  // Of a block.
inline constexpr int kThreadUnits = 4;       // Of a thread, at most.
inline constexpr int64_t kMostChunks = (int64_t{1} << 31) - 1;

// Elements of 16 bytes on the wider side: what a thread loads and stores at a time.
template <typename From, typename To>
struct Unit {
  static constexpr int kElements = 16 / static_cast<int>(std::max(sizeof(From), sizeof(To)));
  static constexpr int kFromBytes = kElements * static_cast<int>(sizeof(From));
  static constexpr int kToBytes = kElements * static_cast<int>(sizeof(To));
};

struct SegmentSplit {
  int64_t head_count;  // Elements.
  int64_t unit_count;
  int64_t tail_count;  // Elements.
};

// Units begin where a sector of the target's memory does, so that no two warps share one.
template <typename From, typename To>
MYDIST_HOST_DEVICE SegmentSplit SplitSegment(const uint8_t* target, int64_t count) {
  constexpr uintptr_t kSectorBytes = 32;
  const uintptr_t gap = (0 - reinterpret_cast<uintptr_t>(target)) % kSectorBytes / sizeof(To);
  const int64_t head = count < static_cast<int64_t>(gap) ? count : static_cast<int64_t>(gap);
  const int64_t units = (count - head) / Unit<From, To>::kElements;
  return {head, units, count - head - units * Unit<From, To>::kElements};
}

// The parameters of a launch. Arrays, not an array of segments, so that the search for a chunk's
// segment stays in few lines of cache.
template <int kSegments>
struct ConvertLaunch {
  static constexpr int64_t kCapacity = kSegments;
  const uint8_t* sources[kSegments];
  uint8_t* targets[kSegments];
  int64_t counts[kSegments];         // Of the kernel's elements; none is 0.
  uint32_t first_chunks[kSegments];  // Of each segment; begins with 0 and rises.
  uint32_t segment_count;
  uint32_t chunk_count;
  uint32_t chunk_units;  // At most kThreadUnits for each thread.
  ElementScaling scaling;
};

// The size of a list; segments with nothing to do do not count.
struct ConvertWork {
  int64_t segment_count = 0;
  int64_t unit_count = 0;  // About.
};

// A copy onto itself has nothing to do.
template <typename From>
bool HasWork(const ConvertSegment& segment) {
  const bool is_copy = std::is_same_v<From, RawByte>;
  return segment.element_count > 0 && !(is_copy && segment.source == segment.target);
}

// Errors: kInvalidArgument for an address that the type does not allow.
template <typename From, typename To>
Result<ConvertWork> MeasureWork(std::span<const ConvertSegment> segments, int64_t parts) {
  ConvertWork work;
  uintptr_t misaligned = 0;
  for (const ConvertSegment& segment : segments) {
    MYDIST_CHECK(segment.element_count >= 0);
    if (!HasWork<From>(segment)) continue;
    ++work.segment_count;
    work.unit_count += segment.element_count * parts / Unit<From, To>::kElements;
    misaligned |= reinterpret_cast<uintptr_t>(segment.source) % sizeof(From);
    misaligned |= reinterpret_cast<uintptr_t>(segment.target) % sizeof(To);
  }
  if (misaligned == 0) return work;
  return Status::InvalidArgument(
      "got a tensor in GPU memory whose address is not a multiple of its element's size; pass a "
      "copy of it (tensor.clone())");
}

// Chunks as large as they can be with some for every processor.
inline uint32_t ChunkUnitsFor(int64_t unit_count, int64_t processor_count) {
  int64_t units = kThreadUnits * kConvertThreads;
  while (units > kConvertThreads && unit_count < 4 * units * processor_count) units /= 2;
  return static_cast<uint32_t>(units);
}

// Writes the segments that have something to do, as many as fit. `launch` has its chunk_units.
// Returns how many of `segments` it went through.
template <typename From, typename To, int kSegments>
size_t FillLaunch(std::span<const ConvertSegment> segments, int64_t parts,
                  ConvertLaunch<kSegments>& launch) {
  size_t next = 0;
  int64_t chunks = 0;
  launch.segment_count = 0;
  for (; next < segments.size() && launch.segment_count < kSegments; ++next) {
    const ConvertSegment& segment = segments[next];
    if (!HasWork<From>(segment)) continue;
    const uint32_t index = launch.segment_count++;
    launch.sources[index] = static_cast<const uint8_t*>(segment.source);
    launch.targets[index] = static_cast<uint8_t*>(segment.target);
    launch.counts[index] = segment.element_count * parts;
    launch.first_chunks[index] = static_cast<uint32_t>(chunks);
    const int64_t units =
        SplitSegment<From, To>(launch.targets[index], launch.counts[index]).unit_count;
    chunks += std::max<int64_t>(1, (units + launch.chunk_units - 1) / launch.chunk_units);
    MYDIST_CHECK(chunks <= kMostChunks);  // 8 TiB at least.
  }
  launch.chunk_count = static_cast<uint32_t>(chunks);
  return next;
}

// What one access of a thread moves.
template <int kBytes>
struct alignas(kBytes) Words {
  using Word =
      std::conditional_t<kBytes == 1, uint8_t, std::conditional_t<kBytes == 2, uint16_t, uint32_t>>;
  Word word[(kBytes + 3) / 4];
};

// An access of a GPU is aligned to its size, or the launch fails. The host would not mind, but
// tests are to find that out there. A call of its own: else GCC warns of what loops leave
// uninitialised.
[[gnu::noinline]] inline void CheckOnHost(const uint8_t* address, size_t alignment) {
  MYDIST_CHECK(reinterpret_cast<uintptr_t>(address) % alignment == 0);
}

// `address` is aligned to T, and on a GPU in device memory.
template <typename T>
MYDIST_ALWAYS_INLINE T Load(const uint8_t* address) {
  static_assert(alignof(T) == sizeof(T), "it would be more than one access");
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(address));
  return *reinterpret_cast<const T*>(address);
#else
  CheckOnHost(address, alignof(T));
  T value;
  __builtin_memcpy(&value, address, sizeof(T));
  return value;
#endif
}

template <typename T>
MYDIST_ALWAYS_INLINE void Store(uint8_t* address, const T& value) {
  static_assert(alignof(T) == sizeof(T), "it would be more than one access");
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(address));
  *reinterpret_cast<T*>(address) = value;
#else
  CheckOnHost(address, alignof(T));
  __builtin_memcpy(address, &value, sizeof(T));
#endif
}

template <typename From, typename To>
MYDIST_ALWAYS_INLINE void ConvertSingle(const uint8_t* source, uint8_t* target, int64_t index,
                                        const ElementScaling& scaling) {
  const From element[1] = {Load<From>(source + index * static_cast<int64_t>(sizeof(From)))};
  To output[1];
  ConvertElements(element, output, scaling);
  Store(target + index * static_cast<int64_t>(sizeof(To)), output[0]);
}

// kBytes from an address that is aligned to kPiece only.
template <int kBytes, int kPiece>
MYDIST_ALWAYS_INLINE Words<kBytes> LoadInPieces(const uint8_t* address) {
  Words<kBytes> words = {};
  MYDIST_UNROLL for (int at = 0; at < kBytes; at += kPiece) {
    const auto piece = Load<Words<kPiece>>(address + at);
    if constexpr (kPiece < 4) {
      words.word[at / 4] |= uint32_t{piece.word[0]} << at % 4 * 8;
    } else {
      __builtin_memcpy(&words.word[at / 4], &piece, kPiece);
    }
  }
  return words;
}

// The units of one chunk, which `source` and `target` begin with.
template <typename From, typename To>
struct ChunkOfUnits {
  using FromWords = Words<Unit<From, To>::kFromBytes>;
  using ToWords = Words<Unit<From, To>::kToBytes>;
  // A thread's loads under way at once. The arithmetic of integers is rare, and big.
  static constexpr int kLoads = std::is_integral_v<From> ? 1 : kThreadUnits;

  const uint8_t* source;
  uint8_t* target;
  uint32_t count;

  // Loads a thread's next units, `first` and those behind it, in the widest accesses that the
  // source's address allows: whole units at best, single elements at worst.
  template <size_t kPieceBytes = sizeof(FromWords)>
  MYDIST_ALWAYS_INLINE void Load(uint32_t first, FromWords (&loaded)[kLoads]) const {
    if constexpr (kPieceBytes > sizeof(From)) {
      if (reinterpret_cast<uintptr_t>(source) % kPieceBytes != 0) {
        return Load<kPieceBytes / 2>(first, loaded);
      }
    }
    MYDIST_UNROLL for (int j = 0; j < kLoads; ++j) {
      const uint32_t unit = first + j * kConvertThreads;
      if (unit >= count) continue;
      loaded[j] = LoadInPieces<sizeof(FromWords), kPieceBytes>(source + unit * sizeof(FromWords));
    }
  }

  // The loads of kLoads units come before the first store.
  MYDIST_ALWAYS_INLINE void Convert(uint32_t thread, const ElementScaling& scaling) const {
    for (uint32_t first = thread; first < count; first += kLoads * kConvertThreads) {
      FromWords loaded[kLoads];
      Load(first, loaded);
      MYDIST_UNROLL for (int j = 0; j < kLoads; ++j) {
        const uint32_t unit = first + j * kConvertThreads;
        if (unit >= count) continue;
        From elements[Unit<From, To>::kElements];
        To output[Unit<From, To>::kElements];
        __builtin_memcpy(elements, &loaded[j], sizeof(elements));
        ConvertElements(elements, output, scaling);
        ToWords words;
        __builtin_memcpy(&words, output, sizeof(words));
        Store(target + unit * sizeof(ToWords), words);
      }
    }
  }
};

// The last segment that begins with this chunk or before.
template <int kSegments>
MYDIST_HOST_DEVICE uint32_t SegmentOfChunk(const ConvertLaunch<kSegments>& launch, uint32_t chunk) {
  uint32_t low = 0;
  uint32_t high = launch.segment_count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (launch.first_chunks[middle] <= chunk ? low : high) = middle;
  }
  return low;
}

// What `thread` of the block that does `chunk` does.
template <typename From, typename To, int kSegments>
MYDIST_HOST_DEVICE void ConvertAsThread(const ConvertLaunch<kSegments>& launch, uint32_t chunk,
                                        uint32_t thread) {
  const uint32_t segment = SegmentOfChunk(launch, chunk);
  const uint8_t* const source = launch.sources[segment];
  uint8_t* const target = launch.targets[segment];
  const int64_t count = launch.counts[segment];
  const SegmentSplit split = SplitSegment<From, To>(target, count);
  const int64_t begin = int64_t{chunk - launch.first_chunks[segment]} * launch.chunk_units;
  const int64_t left = split.unit_count - begin;
  if (begin == 0 && thread < split.head_count) {
    ConvertSingle<From, To>(source, target, thread, launch.scaling);
  }
  if (left <= launch.chunk_units && thread < split.tail_count) {
    ConvertSingle<From, To>(source, target, count - split.tail_count + thread, launch.scaling);
  }
  const int64_t first = split.head_count + begin * Unit<From, To>::kElements;
  const ChunkOfUnits<From, To> units = {
      source + first * static_cast<int64_t>(sizeof(From)),
      target + first * static_cast<int64_t>(sizeof(To)),
      static_cast<uint32_t>(left < launch.chunk_units ? left : launch.chunk_units)};
  units.Convert(thread, launch.scaling);
}

}  // namespace mydist::cuda
