// The kernel between GPUs of a host, on the host: its bits are those of ReduceInRankOrder, whatever
// the size, the address or the ranks' pace, and nobody waits for ever.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/device/ipc_collectives.h"
#include "conformance/reduction_reference.h"
#include "gpu/emulated_ipc.h"
#include "kernels/reduction.h"

namespace mydist::testing {
namespace {

constexpr size_t kGuardBytes = 64;
constexpr uint8_t kUnwritten = 0xA5;

struct Scene {
  Reduction reduction;  // Resolved.
  int64_t count = 0;
  bool in_two_shots = false;
  bool is_in_place = true;
  int64_t misalignment = 0;  // Of rank r: r × so many elements.
};

// One rank's tensor between guards.
class Tensor {
 public:
  Tensor(const Elements& content, int64_t shift_bytes)
      : memory_(content.bytes.size() + 2 * kGuardBytes + 64, kUnwritten),
        begin_(kGuardBytes + static_cast<size_t>(shift_bytes % 64)),
        size_(content.bytes.size()) {
    std::copy(content.bytes.begin(), content.bytes.end(), data());
  }
  uint8_t* data() { return memory_.data() + begin_; }
  std::vector<uint8_t> Content() { return {data(), data() + size_}; }
  bool HasGuards() const {
    size_t intact = 0;
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + size_) && memory_[i] == kUnwritten) ++intact;
    }
    return intact == memory_.size() - size_;
  }

 private:
  std::vector<uint8_t> memory_;
  const size_t begin_;
  const size_t size_;
};

class IpcBench {
 public:
  explicit IpcBench(int size, uint64_t epoch = 0) : size_(size), epoch_(epoch) {
    for (int rank = 0; rank < size; ++rank) {
      // Aligned as a GPU's memory is; the halves are full of what launches must not use.
      memory_.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(256, kIpcBoardBytes)), free);
      boards_[static_cast<size_t>(rank)] = memory_.back().get();
      std::memset(memory_.back().get(), kUnwritten, kIpcBoardBytes);
      for (int64_t at = 0; at < kIpcFlagBytes; at += 8) {
        std::memcpy(memory_.back().get() + at, &epoch, sizeof(epoch));
      }
    }
  }

  IpcAllreduce Job(int rank, uint64_t epoch) const {
    IpcAllreduce job;
    job.rank = rank;
    job.size = size_;
    job.boards = boards_;
    job.epoch = epoch;
    job.abort_word = &abort_word;
    job.most_blocks = most_blocks;
    return job;
  }

  // All scenes one after the other, by ranks that do not wait for each other in between.
  void Run(const std::vector<Scene>& scenes, BlockOrder order = BlockOrder::kOneByOne) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      ranks.emplace_back([&, rank] {
        for (size_t i = 0; i < scenes.size(); ++i) RunOn(rank, scenes[i], epoch_ + 1 + i, order);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    epoch_ += scenes.size();
  }

  uint32_t abort_word = 0;
  int most_blocks = kMaxIpcBlocks;
  std::counting_semaphore<>* places = nullptr;  // Of the GPU that all share.

 private:
  static Elements InputOf(int rank, const Scene& scene, uint64_t epoch) {
    return ContributionOf(scene.reduction.dtype, rank, scene.count, epoch % 64);
  }

  void RunOn(int rank, const Scene& scene, uint64_t epoch, BlockOrder order) {
    const Elements content = InputOf(rank, scene, epoch);
    const Elements nothing(scene.reduction.dtype, scene.count, kUnwritten);
    const int64_t shift = rank * scene.misalignment * SizeOf(scene.reduction.dtype);
    Tensor input(content, shift);
    Tensor separate(nothing, shift);
    Tensor& output = scene.is_in_place ? input : separate;
    IpcAllreduce job = Job(rank, epoch);
    job.input = input.data();
    job.output = output.data();
    job.count = scene.count;
    job.reduction = scene.reduction;
    job.in_two_shots = scene.in_two_shots;
    RunIpcOnHost(job, order, places);
    EXPECT_TRUE(output.Content() == Expected(scene, epoch).bytes)
        << DataTypeName(scene.reduction.dtype) << " " << ReduceOpName(scene.reduction.op) << " of "
        << scene.count << ", rank " << rank << " of " << size_ << ", epoch " << epoch
        << (scene.in_two_shots ? ", in two shots" : "");
    EXPECT_TRUE(input.HasGuards() && separate.HasGuards()) << "wrote beyond the tensor";
    if (!scene.is_in_place) {
      EXPECT_TRUE(input.Content() == content.bytes) << "input was changed";
    }
  }

  Elements Expected(const Scene& scene, uint64_t epoch) const {
    std::vector<Elements> inputs;
    std::vector<const void*> sources;
    for (int rank = 0; rank < size_; ++rank) inputs.push_back(InputOf(rank, scene, epoch));
    for (const Elements& each : inputs) sources.push_back(each.data());
    Elements result(scene.reduction.dtype, scene.count);
    ReduceInRankOrder(sources, result.data(), scene.count, scene.reduction);
    return result;
  }

  const int size_;
  uint64_t epoch_;
  std::vector<std::unique_ptr<uint8_t, void (*)(void*)>> memory_;
  std::array<uint8_t*, kMaxIpcRanks> boards_{};
};

class IpcKernel : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }

  std::vector<Scene> EveryReduction(int64_t count, bool is_scaled) const {
    std::vector<Scene> scenes;
    for (const DataType dtype : kAllDataTypes) {
      for (const ReduceOp op : kAllReduceOps) {
        if (!FoldsOnDevice(op, dtype)) continue;
        Scene scene{.reduction = Reduction{.dtype = dtype, .op = op}.Resolved(size()),
                    .count = count};
        if (is_scaled && dtype != DataType::kBool) {
          scene.reduction.prescale = 0.7;
          scene.reduction.postscale = 3.25;
        }
        for (const bool in_two_shots : {false, true}) {
          scene.in_two_shots = in_two_shots;
          scene.is_in_place = !scene.is_in_place;
          scenes.push_back(scene);
        }
      }
    }
    return scenes;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, IpcKernel, ::testing::Values(2, 3, 4, 5, 8));

TEST_P(IpcKernel, EveryReduction) {
  IpcBench bench(size());
  bench.Run(EveryReduction(1003, false));
}

TEST_P(IpcKernel, EveryReductionScaled) {
  IpcBench bench(size());
  bench.Run(EveryReduction(517, true));
}

TEST_P(IpcKernel, AnySizeAtAnyAddress) {
  const int seed = ::testing::UnitTest::GetInstance()->random_seed();
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
  constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kUint8,
                                 DataType::kInt64};
  std::vector<Scene> scenes;
  for (int i = 0; i < 120; ++i) {
    scenes.push_back({.reduction = {.dtype = kTypes[random() % 4]},
                      .count = static_cast<int64_t>(random() % (uint64_t{1} << random() % 16)),
                      .in_two_shots = random() % 2 == 0,
                      .is_in_place = random() % 2 == 0,
                      .misalignment = static_cast<int64_t>(random() % 5)});
  }
  IpcBench bench(size());
  bench.Run(scenes);
}

// 64 bits do not wrap around; nothing may take fewer of them for the whole.
TEST_P(IpcKernel, EpochsPassTheEndOf32Bits) {
  IpcBench bench(size(), (uint64_t{1} << 32) - 3);
  bench.Run(std::vector<Scene>(8, {.reduction = {}, .count = 700}));
}

TEST(IpcKernelBlocks, AtOnce) {
  IpcBench bench(3);
  const int64_t whole = kIpcHalfBytes / 4;
  bench.Run({{.reduction = {}, .count = whole},
             {.reduction = {}, .count = whole - 1, .in_two_shots = true},
             {.reduction = {}, .count = 5},
             {.reduction = {}, .count = whole / 2, .in_two_shots = true}},
            BlockOrder::kAtOnce);
}

// Ranks on one GPU that do not take turns: blocks wait for each other, and none leaves before.
TEST(IpcKernelBlocks, ThatHaveRoomWaitForNoneThatHasNot) {
  constexpr int kPlaces = 8;
  std::counting_semaphore<> places(kPlaces);
  IpcBench bench(3);
  bench.places = &places;
  bench.most_blocks = kPlaces / 3;
  const int64_t whole = kIpcHalfBytes / 4;
  bench.Run({{.reduction = {}, .count = whole},
             {.reduction = {}, .count = whole - 1, .in_two_shots = true},
             {.reduction = {}, .count = 5}},
            BlockOrder::kAtOnce);
}

// A rank that never comes: the others give up when they are told to, and leave their tensors alone.
TEST(IpcKernelAbort, EndsTheWaitWithoutAResult) {
  for (const bool in_two_shots : {false, true}) {
    IpcBench bench(3);
    const Elements content = ContributionOf(DataType::kFloat32, 0, 5000);
    std::vector<std::thread> ranks;
    std::vector<Elements> tensors(2, content);
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        IpcAllreduce job = bench.Job(rank, 1);
        job.input = job.output = tensors[static_cast<size_t>(rank)].data();
        job.count = content.count();
        job.in_two_shots = in_two_shots;
        RunIpcOnHost(job);
      });
    }
    __atomic_store_n(&bench.abort_word, 1, __ATOMIC_RELEASE);
    for (std::thread& rank : ranks) rank.join();
    for (const Elements& tensor : tensors) EXPECT_TRUE(tensor.bytes == content.bytes);
  }
}

}  // namespace
}  // namespace mydist::testing
