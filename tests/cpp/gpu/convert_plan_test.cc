#include "gpu/kernels/convert_plan.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "gpu/kernels/convert_thread.h"

namespace mydist::cuda {
namespace {

constexpr ConvertShape kShapes[] = {{1, 1}, {2, 2}, {4, 4}, {8, 8}, {4, 2}, {2, 4}};

// Whatever the addresses: no element is left out, units are stored to aligned addresses, and what
// they are cut out of lies inside the segment.
TEST(SplitSegment, CoversTheSegmentAndNothingElse) {
  for (const ConvertShape& shape : kShapes) {
    for (uintptr_t source = 4096; source < 4096 + 48; source += shape.from_bytes) {
      for (uintptr_t target = 8192; target < 8192 + 48; target += shape.to_bytes) {
        for (int64_t count = 1; count < 130; ++count) {
          const SegmentSplit split = SplitSegment(shape, source, target, count);
          ASSERT_GE(split.head_count, 0);
          ASSERT_GE(split.unit_count, 0);
          ASSERT_GE(split.tail_count, 0);
          ASSERT_LT(split.head_count, kConvertThreads);
          ASSERT_LT(split.tail_count, kConvertThreads);
          const int64_t in_units = split.unit_count * shape.UnitElements();
          ASSERT_EQ(split.head_count + in_units + split.tail_count, count);
          if (split.unit_count == 0) continue;
          ASSERT_EQ((target + split.head_count * shape.to_bytes) % shape.ToUnitBytes(), 0u);
          const uintptr_t begin = source + split.head_count * shape.from_bytes;
          ASSERT_EQ(static_cast<int>(begin % shape.FromUnitBytes()), split.shift_bytes);
          if (split.shift_bytes == 0) continue;
          const uintptr_t first = begin - split.shift_bytes;
          ASSERT_GE(first, source);
          ASSERT_LE(first + (split.unit_count + 1) * shape.FromUnitBytes(),
                    source + count * shape.from_bytes);
        }
      }
    }
  }
}

TEST(SplitSegment, LeavesFewElementsSingle) {
  EXPECT_EQ(SplitSegment({4, 4}, 4096, 8192, 1000).head_count, 0);
  EXPECT_EQ(SplitSegment({4, 4}, 4096, 8192, 1000).unit_count, 250);
  const SegmentSplit shifted = SplitSegment({1, 1}, 4097, 8192, 1000);
  EXPECT_EQ(shifted.head_count, 16);
  EXPECT_EQ(shifted.shift_bytes, 1);
  EXPECT_EQ(shifted.unit_count, 60);
}

std::vector<ConvertSegment> SegmentsOf(const std::vector<int64_t>& counts, int64_t element_bytes) {
  std::vector<ConvertSegment> segments;
  uintptr_t address = 1 << 20;
  for (const int64_t count : counts) {
    segments.push_back({.source = reinterpret_cast<const void*>(address),
                        .target = reinterpret_cast<void*>(address + (uintptr_t{1} << 40)),
                        .element_count = count});
    address += static_cast<uintptr_t>(count * element_bytes);
  }
  return segments;
}

struct Filled {
  explicit Filled(int64_t capacity)
      : memory(static_cast<size_t>(capacity * kBytesPerSegment / 8 + 1)),
        arrays(ArraysIn(memory.data(), capacity)) {}
  std::vector<uint64_t> memory;
  SegmentArrays arrays;
  ConvertLaunch launch;
};

TEST(FillArrays, FindsTheSegmentOfEveryChunk) {
  const ConvertJob job = {.parts = 1, .is_copy = false};
  const auto segments = SegmentsOf({10, 0, 5000, 1, 0, 0, 4096, 100'000, 3}, 4);
  Filled filled(9);
  filled.launch.chunk_units = 256;
  EXPECT_EQ((FillArrays<float, float>(segments, job, 9, filled.arrays, filled.launch)), 9u);
  ASSERT_EQ(filled.launch.segment_count, 6u);
  std::vector<uint32_t> chunks(6);
  for (uint32_t chunk = 0; chunk < filled.launch.chunk_count; ++chunk) {
    const uint32_t segment = SegmentOfChunk(filled.arrays, 6, chunk);
    ASSERT_LT(segment, 6u);
    ASSERT_GE(chunk, filled.arrays.first_chunks[segment]);
    ++chunks[segment];
  }
  // 5000 elements are 1250 units, or a few less: five chunks of 256.
  EXPECT_EQ(chunks, (std::vector<uint32_t>{1, 5, 1, 4, 98, 1}));
}

TEST(FillArrays, StopsWhenTheTableIsFull) {
  const ConvertJob job = {.parts = 1, .is_copy = false};
  const auto segments = SegmentsOf({1, 0, 2, 3, 0, 4, 5}, 4);
  Filled filled(3);
  filled.launch.chunk_units = 256;
  const size_t done = FillArrays<float, float>(segments, job, 3, filled.arrays, filled.launch);
  EXPECT_EQ(done, 4u);
  EXPECT_EQ(filled.launch.segment_count, 3u);
  const auto rest = std::span(segments).subspan(done);
  EXPECT_EQ((FillArrays<float, float>(rest, job, 3, filled.arrays, filled.launch)), 3u);
  EXPECT_EQ(filled.launch.segment_count, 2u);
  EXPECT_EQ(filled.arrays.counts[1], 5);
}

TEST(FillArrays, LeavesOutCopiesOntoThemselves) {
  int64_t number = 1;
  const ConvertSegment segment = {&number, &number, 8};
  ConvertJob job = {.parts = 1, .is_copy = true};
  const auto nothing = MeasureWork<RawByte, RawByte>(std::span(&segment, 1), job);
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(nothing->segment_count, 0);
  job.is_copy = false;
  const auto something = MeasureWork<int64_t, int64_t>(std::span(&segment, 1), job);
  ASSERT_TRUE(something.ok());
  EXPECT_EQ(something->segment_count, 1);
}

TEST(ChunkUnits, AreSmallerWhereThereIsLittleToDo) {
  const ConvertTuning tuned = {.chunk_units = 4096};
  EXPECT_EQ(ChunkUnitsFor({.segment_count = 161, .unit_count = 6'400'000}, 132, {}), 1024u);
  EXPECT_EQ(ChunkUnitsFor({.segment_count = 1, .unit_count = 1000}, 132, {}), 256u);
  EXPECT_EQ(ChunkUnitsFor({.segment_count = 1, .unit_count = 1000}, 132, tuned), 4096u);
}

TEST(MeasureWork, RefusesAnAddressBetweenElements) {
  alignas(16) uint8_t memory[32] = {};
  const ConvertSegment segment = {memory + 2, memory + 16, 1};
  const auto work =
      MeasureWork<float, float>(std::span(&segment, 1), {.parts = 1, .is_copy = false});
  EXPECT_EQ(work.status().code(), StatusCode::kInvalidArgument);
}

// So that no test that runs the kernels passes over one.
TEST(ConvertThread, AnAccessThatAGpuRefusesEndsTheTest) {
  alignas(16) uint8_t memory[32] = {};
  Store(memory + 16, Load<Words<16>>(memory));
  EXPECT_DEATH(static_cast<void>(Load<Words<16>>(memory + 8)), "internal error at .*alignment");
  EXPECT_DEATH(Store(memory + 8, Words<16>{}), "internal error at .*alignment");
}

// Address space, of which only what is touched becomes memory.
class VastMemory {
 public:
  explicit VastMemory(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~VastMemory() {
    if (ok()) munmap(memory_, bytes_);
  }
  VastMemory(const VastMemory&) = delete;
  VastMemory& operator=(const VastMemory&) = delete;

  bool ok() const { return memory_ != MAP_FAILED; }
  uint8_t* data() const { return static_cast<uint8_t*>(memory_); }

 private:
  const size_t bytes_;
  void* const memory_;
};

// One segment beyond 2^32 bytes and 2^32 elements; only some of its chunks are run.
TEST(ConvertThread, CountsBeyond32Bits) {
  const int64_t count = (int64_t{5} << 30) + 12'345;
  const VastMemory source(count + 64);
  const VastMemory target(count + 64);
  ASSERT_TRUE(source.ok() && target.ok()) << "no 10 GiB of address space";
  const ConvertSegment segment = {source.data() + 3, target.data() + 5, count};
  const ConvertJob job = {.parts = 1, .is_copy = true};
  Filled filled(1);
  filled.launch.chunk_units = 1024;
  FillArrays<RawByte, RawByte>(std::span(&segment, 1), job, 1, filled.arrays, filled.launch);
  const uint32_t chunk_count = filled.launch.chunk_count;
  ASSERT_EQ(chunk_count, count / 16 / 1024 + 1);
  const SegmentSplit split =
      SplitSegment(ShapeOf<RawByte, RawByte>(), reinterpret_cast<uintptr_t>(segment.source),
                   reinterpret_cast<uintptr_t>(segment.target), count);
  for (const uint32_t chunk : {1u, (1u << 31) / 16384, (1u << 31) / 8192, chunk_count - 1}) {
    const int64_t begin = split.head_count + int64_t{chunk} * 16384;
    const int64_t length = std::min<int64_t>(16384, count - begin);
    const uint8_t* const from = source.data() + 3 + begin;
    const uint8_t* const to = target.data() + 5 + begin;
    for (int64_t i = 0; i < length; ++i) {
      source.data()[3 + begin + i] = static_cast<uint8_t>(i % 251 + 1);
    }
    for (uint32_t thread = 0; thread < kConvertThreads; ++thread) {
      ConvertAsThread<RawByte, RawByte>(filled.arrays, filled.launch, {chunk, chunk_count, thread});
    }
    ASSERT_EQ(std::memcmp(to, from, static_cast<size_t>(length)), 0) << "chunk " << chunk;
    ASSERT_EQ(to[-1], 0) << "chunk " << chunk;
    ASSERT_EQ(to[length], 0) << "chunk " << chunk;
  }
}

}  // namespace
}  // namespace mydist::cuda
