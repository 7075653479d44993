// ConvertAsThread: what one thread of the kernel does. The GPU runs it for all threads of all
// blocks at once, tests on the host for one after the other: no thread needs another.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/status.h"
#include "gpu/kernels/convert_split.h"

namespace mydist::cuda {

struct ThreadPlace {
  uint32_t block;
  uint32_t block_count;
  uint32_t thread;  // Of kConvertThreads in the block.
};

// What one access moves.
template <int kBytes>
struct alignas(kBytes) Words {
  uint32_t word[kBytes / 4];
};

// An access of a GPU is aligned to its size, or the launch fails. The host would not mind, but
// tests are to find that out there. A call of its own: else GCC warns of what loops leave
// uninitialised.
[[gnu::noinline]] inline void CheckOnHost(const uint8_t* address, size_t alignment) {
  MYDIST_CHECK(reinterpret_cast<uintptr_t>(address) % alignment == 0);
}

template <typename T>
MYDIST_ALWAYS_INLINE void CheckAligned([[maybe_unused]] const uint8_t* address) {
  static_assert(alignof(T) == sizeof(T), "it would be more than one access");
#if !defined(__CUDA_ARCH__)
  CheckOnHost(address, alignof(T));
#endif
}

// `address` is aligned to T, and on a GPU in device memory.
template <typename T>
MYDIST_ALWAYS_INLINE T Load(const uint8_t* address) {
  CheckAligned<T>(address);
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(address));
  return *reinterpret_cast<const T*>(address);
#else
  T value;
  __builtin_memcpy(&value, address, sizeof(T));
  return value;
#endif
}

template <typename T>
MYDIST_ALWAYS_INLINE void Store(uint8_t* address, const T& value) {
  CheckAligned<T>(address);
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(address));
  *reinterpret_cast<T*>(address) = value;
#else
  __builtin_memcpy(address, &value, sizeof(T));
#endif
}

// What the memory that an unaligned word lies in holds.
template <int kBytes>
struct WordPair {
  Words<kBytes> low;
  Words<kBytes> high;
};

// The word that begins `shift` bytes, fewer than kBytes, behind the begin of `pair`.
template <int kBytes>
MYDIST_ALWAYS_INLINE Words<kBytes> ShiftedOut(const WordPair<kBytes>& pair, int32_t shift) {
  constexpr int kWords = kBytes / 4;
  uint32_t words[2 * kWords];
  MYDIST_UNROLL for (int j = 0; j < kWords; ++j) {
    words[j] = pair.low.word[j];
    words[kWords + j] = pair.high.word[j];
  }
  // Word by word in powers of two, so that every index is known.
  MYDIST_UNROLL for (int step = kWords / 2; step > 0; step /= 2) {
    const bool is_moved = (shift / 4 & step) != 0;
    MYDIST_UNROLL for (int j = 0; j + step < 2 * kWords; ++j) {
      words[j] = is_moved ? words[j + step] : words[j];
    }
  }
  Words<kBytes> shifted;
  MYDIST_UNROLL for (int j = 0; j < kWords; ++j) {
    const uint64_t both = static_cast<uint64_t>(words[j + 1]) << 32 | words[j];
    shifted.word[j] = static_cast<uint32_t>(both >> (shift % 4 * 8));
  }
  return shifted;
}

// Where a segment's elements are, and what becomes of them.
struct ElementRun {
  const uint8_t* source;
  uint8_t* target;
  const ElementScaling& scaling;
};

template <typename From, typename To>
MYDIST_ALWAYS_INLINE void ConvertSingle(const ElementRun& run, int64_t index) {
  const From source[1] = {Load<From>(run.source + index * static_cast<int64_t>(sizeof(From)))};
  To output[1];
  ConvertElements(source, output, run.scaling);
  Store(run.target + index * static_cast<int64_t>(sizeof(To)), output[0]);
}

template <typename From, typename To>
struct UnitConversion {
  static constexpr ConvertShape kShape = ShapeOf<From, To>();
  static constexpr int kFromBytes = kShape.FromUnitBytes();
  static constexpr int kToBytes = kShape.ToUnitBytes();
  // Loads under way at once in each thread. The arithmetic of integers is rare, and big.
  static constexpr int kLoads = std::is_integral_v<From> ? 1 : 4;

  static MYDIST_ALWAYS_INLINE Words<kToBytes> Convert(const Words<kFromBytes>& words,
                                                      const ElementScaling& scaling) {
    if constexpr (std::is_same_v<From, RawByte>) {
      return words;
    } else {
      From source[kShape.UnitElements()];
      To output[kShape.UnitElements()];
      __builtin_memcpy(source, &words, sizeof(words));
      ConvertElements(source, output, scaling);
      Words<kToBytes> converted;
      __builtin_memcpy(&converted, output, sizeof(converted));
      return converted;
    }
  }

  // `run` begins with the first unit. All of a thread's loads come before its first store.
  static MYDIST_ALWAYS_INLINE void RunAligned(const ElementRun& run, uint32_t unit_count,
                                              uint32_t thread) {
    for (uint32_t first = thread; first < unit_count; first += kLoads * kConvertThreads) {
      Words<kFromBytes> loaded[kLoads];
      MYDIST_UNROLL for (int j = 0; j < kLoads; ++j) {
        const uint32_t unit = first + j * kConvertThreads;
        if (unit >= unit_count) continue;
        loaded[j] = Load<Words<kFromBytes>>(run.source + size_t{unit} * kFromBytes);
      }
      MYDIST_UNROLL for (int j = 0; j < kLoads; ++j) {
        const uint32_t unit = first + j * kConvertThreads;
        if (unit >= unit_count) continue;
        Store(run.target + size_t{unit} * kToBytes, Convert(loaded[j], run.scaling));
      }
    }
  }

  // The source lies `shift` bytes behind an aligned address.
  static MYDIST_ALWAYS_INLINE void RunShifted(const ElementRun& run, uint32_t unit_count,
                                              int32_t shift, uint32_t thread) {
    constexpr int kPairs = kLoads > 1 ? kLoads / 2 : 1;
    for (uint32_t first = thread; first < unit_count; first += kPairs * kConvertThreads) {
      WordPair<kFromBytes> loaded[kPairs];
      MYDIST_UNROLL for (int j = 0; j < kPairs; ++j) {
        const uint32_t unit = first + j * kConvertThreads;
        if (unit >= unit_count) continue;
        const uint8_t* address = run.source - shift + size_t{unit} * kFromBytes;
        loaded[j].low = Load<Words<kFromBytes>>(address);
        loaded[j].high = Load<Words<kFromBytes>>(address + kFromBytes);
      }
      MYDIST_UNROLL for (int j = 0; j < kPairs; ++j) {
        const uint32_t unit = first + j * kConvertThreads;
        if (unit >= unit_count) continue;
        Store(run.target + size_t{unit} * kToBytes,
              Convert(ShiftedOut(loaded[j], shift), run.scaling));
      }
    }
  }
};

// The chunk `index` of a segment.
template <typename From, typename To>
MYDIST_ALWAYS_INLINE void ConvertChunk(const ElementRun& run, int64_t count, uint32_t index,
                                       uint32_t chunk_units, uint32_t thread) {
  using Unit = UnitConversion<From, To>;
  static_assert(kMaxSingles<From, To> <= kConvertThreads);
  const SegmentSplit split =
      SplitSegment(ShapeOf<From, To>(), reinterpret_cast<uintptr_t>(run.source),
                   reinterpret_cast<uintptr_t>(run.target), count);
  const int64_t begin = static_cast<int64_t>(index) * chunk_units;
  const int64_t left = split.unit_count - begin;
  if (index == 0 && thread < split.head_count) ConvertSingle<From, To>(run, thread);
  if (left <= chunk_units && thread < split.tail_count) {
    ConvertSingle<From, To>(run, count - split.tail_count + thread);
  }
  const int64_t first = split.head_count + begin * ShapeOf<From, To>().UnitElements();
  const ElementRun units = {run.source + first * static_cast<int64_t>(sizeof(From)),
                            run.target + first * static_cast<int64_t>(sizeof(To)), run.scaling};
  const auto unit_count = static_cast<uint32_t>(left < chunk_units ? left : chunk_units);
  if (split.shift_bytes == 0) {
    Unit::RunAligned(units, unit_count, thread);
  } else {
    Unit::RunShifted(units, unit_count, split.shift_bytes, thread);
  }
}

template <typename From, typename To, typename Table>
MYDIST_HOST_DEVICE void ConvertAsThread(const Table& table, const ConvertLaunch& launch,
                                        const ThreadPlace& place) {
  for (uint32_t chunk = place.block; chunk < launch.chunk_count; chunk += place.block_count) {
    const uint32_t segment = SegmentOfChunk(table, launch.segment_count, chunk);
    const ElementRun run = {table.sources[segment], table.targets[segment], launch.scaling};
    ConvertChunk<From, To>(run, table.counts[segment], chunk - table.first_chunks[segment],
                           launch.chunk_units, place.thread);
  }
}

}  // namespace mydist::cuda
