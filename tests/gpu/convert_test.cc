// The convert kernel on a GPU: what the host's emulation cannot show, and all that it can.
#include "gpu/kernels/convert.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "conformance/deep.h"
#include "gpu/convert_scene.h"
#include "gpu/device_bytes.h"

namespace mydist {
namespace {

using testing::ConvertScene;
using testing::DeviceBytes;
using testing::SceneLayout;

class ConvertOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
    if (count == 0) GTEST_SKIP() << "no GPU: CUDA sees none";
    MYDIST_ASSERT_CUDA(cudaSetDevice(0));
    MYDIST_ASSERT_CUDA(
        cudaDeviceGetAttribute(&processor_count_, cudaDevAttrMultiProcessorCount, 0));
    const Status loaded = cuda::LoadConvertKernels();
    ASSERT_TRUE(loaded.ok()) << loaded.ToString();
    MYDIST_ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  void TearDown() override {
    if (stream_ != nullptr) MYDIST_ASSERT_CUDA(cudaStreamDestroy(stream_));
  }

  // Other numbers in every run; --gtest_random_seed brings those of a run back.
  static uint64_t Seed(uint64_t salt) {
    const int seed = ::testing::UnitTest::GetInstance()->random_seed();
    return testing::Scramble(static_cast<uint64_t>(seed)) + salt;
  }

  void Check(const Conversion& conversion, const SceneLayout& layout, uint64_t salt) {
    SCOPED_TRACE(testing::NameOf(conversion) + ", salt " + std::to_string(salt) +
                 ", --gtest_random_seed=" +
                 std::to_string(::testing::UnitTest::GetInstance()->random_seed()));
    const ConvertScene scene(conversion, layout, Seed(salt));
    DeviceBytes source(scene.source());
    DeviceBytes target(scene.PoisonedTarget());
    uint8_t* const from = layout.is_in_place ? target.data() : source.data();
    const Status status = cuda::LaunchConvert(scene.SegmentsIn(from, target.data()), conversion,
                                              processor_count_, stream_);
    ASSERT_TRUE(status.ok()) << status.ToString();
    scene.Check(target.Content());
    ASSERT_EQ(source.Content(), scene.source());
  }

  static std::vector<int64_t> RandomCounts(uint64_t salt, int segment_count, uint64_t most) {
    std::mt19937_64 random(Seed(salt));
    std::vector<int64_t> counts;
    for (int i = 0; i < segment_count; ++i) {
      counts.push_back(static_cast<int64_t>(random() % (random() % most + 1)));
    }
    return counts;
  }

  int processor_count_ = 0;  // 1: large chunks, of several units for each thread.
  cudaStream_t stream_ = nullptr;
};

TEST_F(ConvertOnGpu, EveryConversionAtAnyAddress) {
  processor_count_ = 1;
  uint64_t salt = 0;
  for (const Conversion& conversion : testing::EveryConversion()) {
    std::vector<int64_t> counts = RandomCounts(++salt, 20, 3000);
    counts.push_back(70'000);
    Check(conversion, {.counts = counts}, salt);
    if (HasFatalFailure()) return;
  }
}

TEST_F(ConvertOnGpu, EveryConversionAligned) {
  processor_count_ = 1;
  for (const Conversion& conversion : testing::EveryConversion()) {
    Check(conversion, {.counts = {1, 0, 70'000, 16, 4096, 33'333}, .alignment_bytes = 32}, 1);
    if (HasFatalFailure()) return;
  }
}

TEST_F(ConvertOnGpu, EveryConversionInPlace) {
  uint64_t salt = 1000;
  for (const Conversion& conversion : testing::EveryConversion()) {
    if (conversion.from != conversion.to) continue;
    ++salt;
    Check(conversion, {.counts = RandomCounts(salt, 10, 20'000), .is_in_place = true}, salt);
    if (HasFatalFailure()) return;
  }
}

// Parameters of both sizes, and several launches.
TEST_F(ConvertOnGpu, AnyNumberOfSegments) {
  const Conversion cast = {DataType::kFloat32, DataType::kBfloat16, {.multiplier = 0.5}};
  for (const int count : {1, 161, 192, 193, 1152, 1153, 5000, 20'000, 3000}) {
    Check(cast, {.counts = RandomCounts(2000, count, 300)}, static_cast<uint64_t>(count));
    if (HasFatalFailure()) return;
  }
}

TEST_F(ConvertOnGpu, TailsBehindFullChunks) {
  Check({DataType::kFloat32, DataType::kFloat16},
        {.counts = {1024, 1027, 2049, 2048, 4099}, .alignment_bytes = 32}, 2500);
}

// The instructions for float16 against element.h: every float16, and one of every 16 float32,
// or of every 128 in an ordinary run.
TEST_F(ConvertOnGpu, EveryHalf) {
  for (const DataType narrow : {DataType::kFloat16, DataType::kBfloat16}) {
    std::vector<uint8_t> all(2 << 16);
    for (uint32_t i = 0; i < 1 << 16; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      std::memcpy(all.data() + 2 * i, &bits, 2);
    }
    DeviceBytes source(all);
    DeviceBytes target(4 << 16);
    const ConvertSegment segment = {source.data(), target.data(), 1 << 16};
    ASSERT_TRUE(cuda::LaunchConvert(std::span(&segment, 1), {narrow, DataType::kFloat32},
                                    processor_count_, stream_)
                    .ok());
    std::vector<uint8_t> expected(4 << 16);
    auto* const widen = narrow == DataType::kFloat16 ? WidenHalf : WidenBfloat16;
    widen(reinterpret_cast<const uint16_t*>(all.data()), reinterpret_cast<float*>(expected.data()),
          1 << 16);
    ASSERT_EQ(target.Content(), expected) << DataTypeName(narrow);
  }
}

TEST_F(ConvertOnGpu, FloatsOfEveryExponentNarrowed) {
  const int64_t stride = InDeep(16, 128);
  const int64_t count = (int64_t{1} << 29) / stride;
  std::vector<uint8_t> floats(static_cast<size_t>(4 * count));
  std::vector<uint8_t> expected(static_cast<size_t>(2 * count));
  DeviceBytes source(floats.size());
  DeviceBytes target(expected.size());
  const auto step = static_cast<uint64_t>(stride);
  for (uint64_t batch = 0; batch < 8; ++batch) {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t number = batch * static_cast<uint64_t>(count) + static_cast<uint64_t>(i);
      const auto bits =
          static_cast<uint32_t>(number * step + testing::Scramble(Seed(number)) % step);
      std::memcpy(floats.data() + 4 * i, &bits, 4);
    }
    source.Fill(floats);
    for (const DataType narrow : {DataType::kFloat16, DataType::kBfloat16}) {
      const ConvertSegment segment = {source.data(), target.data(), count};
      ASSERT_TRUE(cuda::LaunchConvert(std::span(&segment, 1), {DataType::kFloat32, narrow},
                                      processor_count_, stream_)
                      .ok());
      auto* const narrowing = narrow == DataType::kFloat16 ? NarrowHalf : NarrowBfloat16;
      narrowing(reinterpret_cast<const float*>(floats.data()),
                reinterpret_cast<uint16_t*>(expected.data()), count);
      ASSERT_TRUE(target.Content() == expected) << DataTypeName(narrow) << ", batch " << batch;
    }
  }
}

// One segment beyond 2^32 bytes; looked at in places.
TEST_F(ConvertOnGpu, CountsBeyond32Bits) {
  const int64_t count = (int64_t{5} << 30) + 12'345;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  MYDIST_ASSERT_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < size_t{11} << 30) GTEST_SKIP() << "needs 11 GiB of free GPU memory";
  DeviceBytes source(static_cast<size_t>(count + 3));
  DeviceBytes target(static_cast<size_t>(count + 5));
  MYDIST_ASSERT_CUDA(cudaMemset(source.data(), 0x11, static_cast<size_t>(count + 3)));
  MYDIST_ASSERT_CUDA(cudaMemset(target.data(), 0xa5, static_cast<size_t>(count + 5)));
  std::vector<uint8_t> patch(100'000);
  std::vector<uint8_t> got(patch.size());
  std::mt19937_64 random(Seed(5000));
  for (uint8_t& byte : patch) byte = static_cast<uint8_t>(random());
  const auto length = static_cast<int64_t>(patch.size());
  const int64_t places[] = {0, (int64_t{1} << 31) - 50'000, (int64_t{1} << 32) - 50'000,
                            count - length};
  for (const int64_t place : places) {
    MYDIST_ASSERT_CUDA(
        cudaMemcpy(source.data() + 3 + place, patch.data(), patch.size(), cudaMemcpyHostToDevice));
  }
  MYDIST_ASSERT_CUDA(cudaDeviceSynchronize());
  const ConvertSegment segment = {source.data() + 3, target.data() + 5, count};
  ASSERT_TRUE(cuda::LaunchConvert(std::span(&segment, 1), {DataType::kUint8, DataType::kUint8},
                                  processor_count_, stream_)
                  .ok());
  MYDIST_ASSERT_CUDA(cudaDeviceSynchronize());
  for (const int64_t place : places) {
    MYDIST_ASSERT_CUDA(
        cudaMemcpy(got.data(), target.data() + 5 + place, got.size(), cudaMemcpyDeviceToHost));
    ASSERT_TRUE(got == patch) << "at byte " << place;
  }
}

// A graph that holds short and long lists, replayed with other numbers behind other launches.
TEST_F(ConvertOnGpu, ReplaysWhatWasCaptured) {
  const Conversion scale = {DataType::kFloat32, DataType::kFloat32, {.multiplier = -0.5}};
  const SceneLayout few = {.counts = RandomCounts(6000, 161, 3000), .is_in_place = true};
  const SceneLayout many = {.counts = RandomCounts(6001, 5000, 100), .is_in_place = true};
  const ConvertScene short_list(scale, few, Seed(6002));
  const ConvertScene long_list(scale, many, Seed(6003));
  DeviceBytes short_memory(short_list.source());
  DeviceBytes long_memory(long_list.source());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  MYDIST_ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  Status status =
      cuda::LaunchConvert(short_list.SegmentsIn(short_memory.data(), short_memory.data()), scale,
                          processor_count_, stream_);
  EXPECT_TRUE(status.ok()) << status.ToString();
  status = cuda::LaunchConvert(long_list.SegmentsIn(long_memory.data(), long_memory.data()), scale,
                               processor_count_, stream_);
  EXPECT_TRUE(status.ok()) << status.ToString();
  MYDIST_ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph));
  MYDIST_ASSERT_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  ASSERT_EQ(short_memory.Content(), short_list.source()) << "captured, and run all the same";
  for (int round = 0; round < InDeep(3, 2); ++round) {
    short_memory.Fill(short_list.source());
    long_memory.Fill(long_list.source());
    Check(scale, many, static_cast<uint64_t>(6010 + round));
    MYDIST_ASSERT_CUDA(cudaGraphLaunch(replay, stream_));
    short_list.Check(short_memory.Content());
    long_list.Check(long_memory.Content());
    if (HasFatalFailure()) return;
  }
  MYDIST_ASSERT_CUDA(cudaGraphExecDestroy(replay));
  MYDIST_ASSERT_CUDA(cudaGraphDestroy(graph));
}

// A list that is too long for the kernel's parameters is several launches, and no copy.
TEST_F(ConvertOnGpu, CapturesOneLaunchForEachListThatFits) {
  const Conversion scale = {DataType::kFloat32, DataType::kFloat32, {.multiplier = -0.5}};
  struct Case {
    int segments;
    size_t nodes;
  };
  constexpr Case kCases[] = {{1, 1}, {161, 1}, {193, 1}, {1152, 1}, {1153, 2}, {20'000, 18}};
  for (const Case& one : kCases) {
    std::vector<int64_t> counts = RandomCounts(8000, one.segments, 30);
    for (int64_t& count : counts) ++count;  // All of them have something to do.
    const ConvertScene scene(scale, {.counts = counts, .is_in_place = true}, Seed(8001));
    DeviceBytes memory(scene.source());
    cudaGraph_t graph = nullptr;
    size_t nodes = 0;
    MYDIST_ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const Status status = cuda::LaunchConvert(scene.SegmentsIn(memory.data(), memory.data()), scale,
                                              processor_count_, stream_);
    EXPECT_TRUE(status.ok()) << status.ToString();
    MYDIST_ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph));
    MYDIST_ASSERT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, one.nodes) << one.segments << " segments";
    MYDIST_ASSERT_CUDA(cudaGraphDestroy(graph));
  }
}

// Others may capture whatever they like.
TEST_F(ConvertOnGpu, WorksWhileAnotherStreamIsCaptured) {
  const Conversion scale = {DataType::kFloat32, DataType::kFloat32, {.multiplier = 1.5}};
  const SceneLayout many = {.counts = RandomCounts(7000, 5000, 100), .is_in_place = true};
  const ConvertScene scene(scale, many, Seed(7001));
  DeviceBytes memory(scene.source());
  cudaStream_t other = nullptr;
  cudaGraph_t graph = nullptr;
  MYDIST_ASSERT_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  MYDIST_ASSERT_CUDA(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
  const Status status = cuda::LaunchConvert(scene.SegmentsIn(memory.data(), memory.data()), scale,
                                            processor_count_, stream_);
  EXPECT_TRUE(status.ok()) << status.ToString();
  MYDIST_ASSERT_CUDA(cudaStreamEndCapture(other, &graph));
  MYDIST_ASSERT_CUDA(cudaGraphDestroy(graph));
  MYDIST_ASSERT_CUDA(cudaStreamDestroy(other));
  scene.Check(memory.Content());
}

}  // namespace
}  // namespace mydist
