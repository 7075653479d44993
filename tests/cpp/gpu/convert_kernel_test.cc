// The kernel behind Device::Convert, every thread of it, on the host.
#include <gtest/gtest.h>

#include "fakes/aligned_bytes.h"
#include "gpu/convert_scene.h"
#include "gpu/emulated_launch.h"

namespace mydist {
namespace {

using testing::AlignedBytes;
using testing::ConvertScene;
using testing::EmulatedLaunch;
using testing::SceneLayout;

void Check(const Conversion& conversion, const SceneLayout& layout, uint64_t seed,
           const EmulatedLaunch& launch = {}) {
  SCOPED_TRACE(testing::NameOf(conversion) + ", seed " + std::to_string(seed));
  const ConvertScene scene(conversion, layout, seed);
  AlignedBytes source(scene.source());
  AlignedBytes target(scene.PoisonedTarget());
  uint8_t* const from = layout.is_in_place ? target.data() : source.data();
  const Status status = launch.Convert(scene.SegmentsIn(from, target.data()), conversion);
  ASSERT_TRUE(status.ok()) << status.ToString();
  scene.Check(target.Content());
  ASSERT_EQ(source.Content(), scene.source());
}

std::vector<int64_t> RandomCounts(uint64_t seed, int segment_count, uint64_t most) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> counts;
  for (int i = 0; i < segment_count; ++i) {
    counts.push_back(static_cast<int64_t>(random() % (random() % most + 1)));
  }
  return counts;
}

TEST(ConvertKernel, EveryConversionAtAnyAddress) {
  uint64_t seed = 1;
  for (const Conversion& conversion : testing::EveryConversion()) {
    for (int round = 0; round < 3; ++round, ++seed) {
      Check(conversion, {.counts = RandomCounts(seed, 12, 400)}, seed, {.is_backward = round == 1});
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(ConvertKernel, EveryConversionAligned) {
  for (const Conversion& conversion : testing::EveryConversion()) {
    Check(conversion, {.counts = {1, 0, 5000, 16, 4096}, .alignment_bytes = 32}, 7);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(ConvertKernel, EveryConversionInPlace) {
  uint64_t seed = 100;
  for (const Conversion& conversion : testing::EveryConversion()) {
    if (conversion.from != conversion.to) continue;
    ++seed;
    Check(conversion, {.counts = RandomCounts(seed, 10, 3000), .is_in_place = true}, seed);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Both ends of a copy at every distance from an aligned address, and every small size.
TEST(ConvertKernel, BytesFromAnyToAnyAddress) {
  std::vector<uint8_t> source(256);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i + 1);
  for (int64_t from = 0; from < 33; ++from) {
    for (int64_t to = 0; to < 33; ++to) {
      for (int64_t count = 0; count < 120; count += 1 + count / 8) {
        AlignedBytes memory(source);
        AlignedBytes target(std::vector<uint8_t>(256, 0));
        const ConvertSegment segment = {memory.data() + from, target.data() + to, count};
        const Conversion conversion = {DataType::kUint8, DataType::kUint8};
        ASSERT_TRUE(EmulatedLaunch{}.Convert(std::span(&segment, 1), conversion).ok());
        std::vector<uint8_t> expected(256, 0);
        std::copy_n(source.begin() + from, count, expected.begin() + to);
        ASSERT_EQ(target.Content(), expected) << from << " to " << to << ", " << count << " bytes";
      }
    }
  }
}

TEST(ConvertKernel, SegmentsOfManyChunks) {
  const Conversion cast = {DataType::kFloat32, DataType::kFloat16};
  Check(cast, {.counts = {100'003, 7, 0, 65'536, 1, 33'333}}, 11, {.processor_count = 1});
  Check(cast, {.counts = {100'003, 7, 0, 65'536, 1, 33'333}}, 12, {.processor_count = 200});
}

// Units that fill their chunks to the last, and single elements behind them.
TEST(ConvertKernel, TailsBehindFullChunks) {
  const SceneLayout layout = {.counts = {1024, 1027, 2049, 2048, 4099}, .alignment_bytes = 32};
  const EmulatedLaunch launch = {.tuning = {.chunk_units = 256}};
  Check({DataType::kFloat32, DataType::kFloat32, {.multiplier = 0.5}}, layout, 17, launch);
  Check({DataType::kFloat32, DataType::kFloat16}, layout, 18, launch);
}

TEST(ConvertKernel, FewerBlocksThanChunks) {
  const EmulatedLaunch launch = {.processor_count = 3,
                                 .tuning = {.chunk_units = 256, .blocks_per_processor = 2}};
  Check({DataType::kBfloat16, DataType::kFloat32}, {.counts = {50'000, 3, 20'001}}, 13, launch);
}

TEST(ConvertKernel, ThousandsOfSegments) {
  Check({DataType::kFloat32, DataType::kBfloat16, {.multiplier = 0.5}},
        {.counts = RandomCounts(14, 5000, 60)}, 14);
}

TEST(ConvertKernel, NothingToDo) {
  Check({DataType::kFloat32, DataType::kFloat16}, {.counts = {}}, 15);
  Check({DataType::kFloat32, DataType::kFloat16}, {.counts = {0, 0, 0}}, 16);
}

TEST(ConvertKernel, RefusesAnAddressBetweenElements) {
  alignas(16) uint8_t memory[32] = {};
  const ConvertSegment segment = {memory + 2, memory + 16, 1};
  const Status status = EmulatedLaunch{}.Convert(
      std::span(&segment, 1), {DataType::kFloat32, DataType::kFloat32, {.multiplier = 2.0}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

// So that no other test here passes over one.
TEST(ConvertKernel, AnAccessThatAGpuRefusesEndsTheTest) {
  using Unit = cuda::Words<16>;
  alignas(16) uint8_t memory[32] = {};
  cuda::Store(memory + 16, cuda::Load<Unit>(memory));
  EXPECT_DEATH(static_cast<void>(cuda::Load<Unit>(memory + 8)), "internal error at .*alignment");
  EXPECT_DEATH(cuda::Store(memory + 8, Unit{}), "internal error at .*alignment");
  EXPECT_DEATH(static_cast<void>(cuda::Load<float>(memory + 2)), "internal error at .*alignment");
}

}  // namespace
}  // namespace mydist
