#include "gpu/kernels/convert_plan.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace mydist::cuda {
namespace {

template <typename Types>
class SegmentSplits : public ::testing::Test {};

using AllShapes = ::testing::Types<std::pair<RawByte, RawByte>, std::pair<int16_t, int16_t>,
                                   std::pair<float, float>, std::pair<double, double>,
                                   std::pair<float, Half>, std::pair<Half, float>>;
TYPED_TEST_SUITE(SegmentSplits, AllShapes);

// Whatever the address: no element is left out, one block has threads for all single ones, and
// units are stored to aligned addresses.
TYPED_TEST(SegmentSplits, CoverTheSegment) {
  using From = typename TypeParam::first_type;
  using To = typename TypeParam::second_type;
  using Shape = Unit<From, To>;
  for (uintptr_t target = 8192; target < 8192 + 48; target += sizeof(To)) {
    for (int64_t count = 1; count < 130; ++count) {
      const auto split = SplitSegment<From, To>(reinterpret_cast<const uint8_t*>(target), count);
      ASSERT_GE(split.head_count, 0);
      ASSERT_GE(split.unit_count, 0);
      ASSERT_GE(split.tail_count, 0);
      ASSERT_LT(split.head_count, kConvertThreads);
      ASSERT_LT(split.tail_count, Shape::kElements);
      const int64_t in_units = split.unit_count * Shape::kElements;
      ASSERT_EQ(split.head_count + in_units + split.tail_count, count);
      if (split.unit_count == 0) continue;
      ASSERT_EQ((target + static_cast<uintptr_t>(split.head_count) * sizeof(To)) % 32, 0u);
    }
  }
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

TEST(FillLaunch, FindsTheSegmentOfEveryChunk) {
  const auto segments = SegmentsOf({10, 0, 5000, 1, 0, 0, 4096, 100'000, 3}, 4);
  ConvertLaunch<9> launch{};
  launch.chunk_units = 256;
  EXPECT_EQ((FillLaunch<float, float>(segments, 1, launch)), 9u);
  ASSERT_EQ(launch.segment_count, 6u);
  std::vector<uint32_t> chunks(6);
  for (uint32_t chunk = 0; chunk < launch.chunk_count; ++chunk) {
    const uint32_t segment = SegmentOfChunk(launch, chunk);
    ASSERT_LT(segment, 6u);
    ASSERT_GE(chunk, launch.first_chunks[segment]);
    ++chunks[segment];
  }
  // 5000 elements are 1250 units, or a few less: five chunks of 256.
  EXPECT_EQ(chunks, (std::vector<uint32_t>{1, 5, 1, 4, 98, 1}));
}

TEST(FillLaunch, StopsWhenTheLaunchIsFull) {
  const auto segments = SegmentsOf({1, 0, 2, 3, 0, 4, 5}, 4);
  ConvertLaunch<3> launch{};
  launch.chunk_units = 256;
  const size_t done = FillLaunch<float, float>(segments, 1, launch);
  EXPECT_EQ(done, 4u);
  EXPECT_EQ(launch.segment_count, 3u);
  const auto rest = std::span(segments).subspan(done);
  EXPECT_EQ((FillLaunch<float, float>(rest, 1, launch)), 3u);
  EXPECT_EQ(launch.segment_count, 2u);
  EXPECT_EQ(launch.counts[1], 5);
}

TEST(MeasureWork, LeavesOutCopiesOntoThemselves) {
  int64_t number = 1;
  const ConvertSegment segment = {&number, &number, 1};
  const auto nothing = MeasureWork<RawByte, RawByte>(std::span(&segment, 1), 8);
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(nothing->segment_count, 0);
  const auto something = MeasureWork<int64_t, int64_t>(std::span(&segment, 1), 1);
  ASSERT_TRUE(something.ok());
  EXPECT_EQ(something->segment_count, 1);
}

TEST(ChunkUnits, AreSmallerWhereThereIsLittleToDo) {
  EXPECT_EQ(ChunkUnitsFor(6'400'000, 132), 1024u);
  EXPECT_EQ(ChunkUnitsFor(1000, 132), 256u);
}

TEST(MeasureWork, RefusesAnAddressBetweenElements) {
  alignas(16) uint8_t memory[32] = {};
  const ConvertSegment segment = {memory + 2, memory + 16, 1};
  const auto work = MeasureWork<float, float>(std::span(&segment, 1), 1);
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
  ConvertLaunch<1> launch{};
  launch.chunk_units = 1024;
  FillLaunch<RawByte, RawByte>(std::span(&segment, 1), 1, launch);
  const uint32_t chunk_count = launch.chunk_count;
  ASSERT_EQ(chunk_count, count / 16 / 1024 + 1);
  const int64_t head = SplitSegment<RawByte, RawByte>(target.data() + 5, count).head_count;
  for (const uint32_t chunk : {1u, (1u << 31) / 16384, (1u << 31) / 8192, chunk_count - 1}) {
    const int64_t begin = head + int64_t{chunk} * 16384;
    const int64_t length = std::min<int64_t>(16384, count - begin);
    const uint8_t* const from = source.data() + 3 + begin;
    const uint8_t* const to = target.data() + 5 + begin;
    for (int64_t i = 0; i < length; ++i) {
      source.data()[3 + begin + i] = static_cast<uint8_t>(i % 251 + 1);
    }
    for (uint32_t thread = 0; thread < kConvertThreads; ++thread) {
      ConvertAsThread<RawByte, RawByte>(launch, chunk, thread);
    }
    ASSERT_EQ(std::memcmp(to, from, static_cast<size_t>(length)), 0) << "chunk " << chunk;
    ASSERT_EQ(to[-1], 0) << "chunk " << chunk;
    ASSERT_EQ(to[length], 0) << "chunk " << chunk;
  }
}

}  // namespace
}  // namespace mydist::cuda
