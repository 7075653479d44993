// G1: how fast the gradients of ResNet-50 (161 tensors, 102 MB) are packed, unpacked, scaled and
// cast, against a copy from device to device by the driver. Interleaved; medians; rates count bytes
// read and written. Usage: bench_convert [--smoke] (one round with tensors of a thousandth, whose
// rates say nothing).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/kernels/convert.h"

namespace mydist {
namespace {

constexpr int kRounds = 9;     // That count; one more warms up.
constexpr int kLaunches = 12;  // Of a round, one behind the other.
constexpr int kBuffers = 3;    // Taken by turns, so that nothing is in a cache from before.

void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// Of the weights, in the order of the network: 25,557,032 numbers.
std::vector<int64_t> ResnetCounts() {
  std::vector<int64_t> counts = {3 * 64 * 49, 64, 64};
  const auto convolution = [&](int64_t in, int64_t out, int64_t window) {
    counts.insert(counts.end(), {in * out * window, out, out});
  };
  int64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      convolution(in, width, 1);
      convolution(width, width, 9);
      convolution(width, 4 * width, 1);
      if (block == 0) convolution(in, 4 * width, 1);
      in = 4 * width;
    }
  }
  counts.insert(counts.end(), {2048 * 1000, 1000});
  return counts;
}

std::vector<int64_t> SmallCounts() {
  std::vector<int64_t> counts = ResnetCounts();
  for (int64_t& count : counts) count = count / 1000 + 1;
  return counts;
}

int64_t BytesTogether(const std::vector<int64_t>& counts, int64_t element_bytes,
                      int64_t alignment) {
  int64_t bytes = 0;
  for (const int64_t count : counts) {
    bytes += (count * element_bytes + alignment - 1) / alignment * alignment;
  }
  return bytes;
}

// Where tensors lie one behind the other, each aligned.
std::vector<uint8_t*> PlacesIn(uint8_t* memory, const std::vector<int64_t>& counts,
                               int64_t element_bytes, int64_t alignment) {
  std::vector<uint8_t*> places;
  for (const int64_t count : counts) {
    places.push_back(memory);
    memory += (count * element_bytes + alignment - 1) / alignment * alignment;
  }
  return places;
}

struct Case {
  const char* name;
  Conversion conversion;
  int64_t source_alignment;  // 512: tensors of their own; an element: close together.
  int64_t target_alignment;
};

class Benchmark {
 public:
  Benchmark(std::vector<int64_t> counts, int rounds) : counts_(std::move(counts)), rounds_(rounds) {
    Require(cudaDeviceGetAttribute(&processor_count_, cudaDevAttrMultiProcessorCount, 0),
            "cudaDeviceGetAttribute");
    Require(cuda::LoadConvertKernels());
    Require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    Require(cudaEventCreate(&begin_), "cudaEventCreate");
    Require(cudaEventCreate(&end_), "cudaEventCreate");
    const int64_t bytes = BytesTogether(counts_, 4, 512) + 512;
    std::vector<uint32_t> numbers(static_cast<size_t>(bytes / 4));
    std::mt19937 random(1);
    for (uint32_t& number : numbers) number = (random() & 0x807fffffu) | 0x3f000000u;
    for (int i = 0; i < kBuffers; ++i) {
      sources_[i] = DeviceCopyOf(numbers);
      targets_[i] = DeviceCopyOf(numbers);
    }
    Require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  ~Benchmark() {
    for (int i = 0; i < kBuffers; ++i) {
      Require(cudaFree(sources_[i]), "cudaFree");
      Require(cudaFree(targets_[i]), "cudaFree");
    }
    Require(cudaEventDestroy(begin_), "cudaEventDestroy");
    Require(cudaEventDestroy(end_), "cudaEventDestroy");
    Require(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }
  Benchmark(const Benchmark&) = delete;
  Benchmark& operator=(const Benchmark&) = delete;

  void Run(const Case& one) {
    std::vector<ConvertSegment> segments[kBuffers];
    for (int i = 0; i < kBuffers; ++i) segments[i] = SegmentsOf(one, i);
    const int64_t elements = BytesTogether(counts_, 1, 1);
    const int64_t moved = elements * (SizeOf(one.conversion.from) + SizeOf(one.conversion.to));
    Times times;
    for (int round = 0; round <= rounds_; ++round) {
      const double copied = TimeUs([&](int i) {
        Require(cudaMemcpyAsync(targets_[i], sources_[i], static_cast<size_t>(moved / 2),
                                cudaMemcpyDeviceToDevice, stream_),
                "cudaMemcpyAsync");
      });
      const auto start = std::chrono::steady_clock::now();
      double submitted = 0;
      int launch = 0;
      const double converted = TimeUs([&](int i) {
        Require(cuda::LaunchConvert(segments[i], one.conversion, processor_count_, stream_));
        if (++launch == kLaunches) {
          submitted =
              std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                  .count();
        }
      });
      if (round == 0) continue;  // To warm up.
      times.copy_us.push_back(copied);
      times.convert_us.push_back(converted);
      times.host_us.push_back(submitted / kLaunches);
    }
    Print(one, moved, times, CountLaunches(segments[0], one.conversion));
  }

 private:
  // Of each round.
  struct Times {
    std::vector<double> copy_us;
    std::vector<double> convert_us;
    std::vector<double> host_us;
  };

  static uint8_t* DeviceCopyOf(const std::vector<uint32_t>& numbers) {
    const size_t bytes = 4 * numbers.size();
    void* memory = nullptr;
    Require(cudaMalloc(&memory, bytes), "cudaMalloc");
    Require(cudaMemcpy(memory, numbers.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return static_cast<uint8_t*>(memory);
  }

  std::vector<ConvertSegment> SegmentsOf(const Case& one, int buffer) const {
    const auto from =
        PlacesIn(sources_[buffer], counts_, SizeOf(one.conversion.from), one.source_alignment);
    const auto to =
        PlacesIn(targets_[buffer], counts_, SizeOf(one.conversion.to), one.target_alignment);
    std::vector<ConvertSegment> segments;
    for (size_t i = 0; i < counts_.size(); ++i) {
      // A little behind, where tensors lie close together, so that nothing is aligned by chance.
      const int64_t from_gap = one.source_alignment < 16 ? SizeOf(one.conversion.from) : 0;
      const int64_t to_gap = one.target_alignment < 16 ? SizeOf(one.conversion.to) : 0;
      segments.push_back({from[i] + from_gap, to[i] + to_gap, counts_[i]});
    }
    return segments;
  }

  // Of one of kLaunches launches.
  double TimeUs(const std::function<void(int)>& launch) {
    Require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    Require(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < kLaunches; ++i) launch(i % kBuffers);
    Require(cudaEventRecord(end_, stream_), "cudaEventRecord");
    Require(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    Require(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return 1000.0 * static_cast<double>(ms) / kLaunches;
  }

  // What one LaunchConvert puts on the stream: the nodes of the graph that it is captured into.
  size_t CountLaunches(const std::vector<ConvertSegment>& segments, const Conversion& conversion) {
    cudaGraph_t graph = nullptr;
    size_t nodes = 0;
    Require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture");
    Require(cuda::LaunchConvert(segments, conversion, processor_count_, stream_));
    Require(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    Require(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
    Require(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return nodes;
  }

  static double Median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  static void Print(const Case& one, int64_t moved, const Times& times, size_t launches) {
    const double copy = Median(times.copy_us);
    const double convert = Median(times.convert_us);
    std::printf("%-36s %9.2f %9.2f %8.0f %8.0f %7.2f %8.2f %8zu\n", one.name, copy, convert,
                1e-3 * static_cast<double>(moved) / copy,
                1e-3 * static_cast<double>(moved) / convert, copy / convert, Median(times.host_us),
                launches);
  }

  const std::vector<int64_t> counts_;
  const int rounds_;
  int processor_count_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  uint8_t* sources_[kBuffers] = {};
  uint8_t* targets_[kBuffers] = {};
};

int Main(bool is_smoke) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    std::printf("bench_convert: skipped: no GPU (%s)\n", cudaGetErrorString(error));
    return 0;
  }
  Require(cudaSetDevice(0), "cudaSetDevice");
  constexpr DataType kFloat = DataType::kFloat32;
  constexpr DataType kHalf = DataType::kFloat16;
  constexpr DataType kBrain = DataType::kBfloat16;
  const Case cases[] = {
      {"pack", {kFloat, kFloat}, 512, 64},
      {"pack, close together", {kFloat, kFloat}, 512, 4},
      {"unpack, close together", {kFloat, kFloat}, 4, 512},
      {"pack, × 1/8", {kFloat, kFloat, {.multiplier = 0.125}}, 512, 64},
      {"pack, ÷ 3", {kFloat, kFloat, {.divisor = 3}}, 512, 64},
      {"pack to float16, × 1/8", {kFloat, kHalf, {.multiplier = 0.125}}, 512, 64},
      {"pack to bfloat16, ÷ 3", {kFloat, kBrain, {.divisor = 3}}, 512, 64},
      {"unpack from float16, × 8", {kHalf, kFloat, {.multiplier = 8.0}}, 64, 512},
      {"unpack from bfloat16", {kBrain, kFloat}, 64, 512},
      {"pack bfloat16, close together", {kBrain, kBrain}, 512, 2},
      {"unpack bfloat16, close together", {kBrain, kBrain}, 2, 512},
      {"unpack from float16, close together", {kHalf, kFloat, {.multiplier = 8.0}}, 2, 512},
  };
  const std::vector<int64_t> counts = is_smoke ? SmallCounts() : ResnetCounts();
  std::printf("%zu tensors, %lld numbers\n", counts.size(),
              static_cast<long long>(BytesTogether(counts, 1, 1)));
  std::printf("%-36s %9s %9s %8s %8s %7s %8s %8s\n", "", "copy µs", "ours µs", "GB/s", "GB/s",
              "ratio", "host µs", "launches");
  Benchmark benchmark(counts, is_smoke ? 1 : kRounds);
  for (const Case& one : cases) benchmark.Run(one);
  return 0;
}

}  // namespace
}  // namespace mydist

int main(int argument_count, char** arguments) {
  const std::string_view option = argument_count > 1 ? arguments[1] : "";
  if (argument_count > 2 || !(option.empty() || option == "--smoke")) {
    std::fprintf(stderr, "usage: bench_convert [--smoke]\n");
    return 2;
  }
  return mydist::Main(option == "--smoke");
}
