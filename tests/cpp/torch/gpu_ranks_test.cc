// Gradients on the GPUs of several ranks, each a process with fake devices of its own: what a step
// launches and copies, and what comes out, wherever each rank has each gradient.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "job/job.h"
#include "memory/shm/forked_ranks.h"
#include "torch/embedded_python.h"
#include "torch/fake_cuda.h"
#include "torch/gradients/gradient_reducer.h"

namespace mydist::testing {
namespace {

constexpr int kRanks = 3;
constexpr int kSteps = 6;
constexpr size_t kParameters = 40;

using Floats = std::vector<float>;

// How a step comes by a gradient: autograd makes it anew, adds to what was zeroed, or makes none.
enum class Manner { kNew, kOver, kNone };
using MannerOf = std::function<Manner(int rank, int step, size_t parameter)>;

uint64_t Draw(int rank, int step, size_t parameter, size_t element) {
  uint64_t bits = 0x9E3779B97F4A7C15;
  for (const uint64_t number : {static_cast<uint64_t>(rank), static_cast<uint64_t>(step),
                                uint64_t{parameter}, uint64_t{element}}) {
    bits = (bits ^ number) * 0xBF58476D1CE4E5B9;
    bits ^= bits >> 29;
  }
  return bits;
}

// The first one is empty.
size_t CountOf(size_t parameter) { return parameter * 37 % 101; }

Floats GradientOf(int rank, int step, size_t parameter, Manner manner) {
  Floats values(CountOf(parameter), 0.0F);
  if (manner == Manner::kNone) return values;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(Draw(rank, step, parameter, i) % 20001) / 10000.0F - 1.0F;
  }
  return values;
}

class Rank {
 public:
  Rank(const shm::ForkedRanks::Seat& seat, MannerOf manner_of)
      : rank_(seat.rank), manner_of_(std::move(manner_of)) {
    cuda_.Begin(Pace::kRandom);
    ExpectOk(process::Init({.rank = rank_,
                            .size = kRanks,
                            .backend = "local",
                            .exchange = seat.exchange,
                            .devices = cuda_.plugin()}));
    reducer_ = std::make_shared<GradientReducer>(
        GradientReducerOptions{.reduction = {.op = ReduceOp::kAverage}});
    for (size_t i = 0; i < kParameters; ++i) {
      parameters_.push_back(cuda_.Make(Floats(CountOf(i))));
      parameters_.back().set_requires_grad(true);
      reducer_->AddParameter(parameters_.back(), "p" + std::to_string(i), "", 0);
    }
  }
  ~Rank() {
    reducer_->Remove();
    parameters_.clear();
    reducer_.reset();
    {
      const pybind11::gil_scoped_release released;
      EXPECT_TRUE(process::Shutdown().ok());
    }
    EXPECT_EQ(cuda_.End(), "");
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return rank_; }
  GradientReducer& reducer() { return *reducer_; }

  struct Work {
    int64_t launches;
    int64_t copies;
    int64_t slot_bytes;  // Copied to slots.
  };
  // What a step takes once its gradients are there.
  Work Step(int step) {
    for (size_t i = 0; i < kParameters; ++i) MakeGradient(step, i);
    const DeviceCounts before = cuda_.gpu(0).counts();
    const int64_t bytes = reducer_->copied_bytes();
    for (size_t i = kParameters; i-- > 0;) {
      if (manner_of_(rank_, step, i) != Manner::kNone) reducer_->OnGradient(i);
    }
    reducer_->Synchronize();
    const DeviceCounts after = cuda_.gpu(0).counts();
    return {after.launches - before.launches, after.copies - before.copies,
            reducer_->copied_bytes() - bytes};
  }

  void ExpectMeans(int step) {
    for (size_t i = 0; i < kParameters; ++i) {
      const Floats result = cuda_.Read(parameters_[i].grad());
      std::vector<double> mean(CountOf(i));
      for (int rank = 0; rank < kRanks; ++rank) {
        const Floats values = GradientOf(rank, step, i, manner_of_(rank, step, i));
        for (size_t k = 0; k < mean.size(); ++k) mean[k] += double{values[k]} / kRanks;
      }
      ASSERT_EQ(result.size(), mean.size());
      for (size_t k = 0; k < mean.size(); ++k) {
        ASSERT_NEAR(result[k], mean[k], 1e-6)
            << "rank " << rank_ << ", step " << step << ", parameter " << i << "[" << k << "]";
      }
    }
  }

 private:
  void MakeGradient(int step, size_t i) {
    const at::NoGradGuard no_grad;
    const Manner manner = manner_of_(rank_, step, i);
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (manner == Manner::kNone) {
      gradient.reset();
      return;
    }
    const at::Tensor values = cuda_.Make(GradientOf(rank_, step, i, manner));
    if (manner == Manner::kOver && gradient.defined()) {
      gradient.copy_(values);
    } else {
      gradient = values;
    }
  }

  FakeCuda& cuda_ = FakeCuda::Instance();
  const int rank_;
  const MannerOf manner_of_;
  std::vector<at::Tensor> parameters_;
  std::shared_ptr<GradientReducer> reducer_;
};

// Each of them does all steps; `check` gets what each one took.
void RunRanks(const MannerOf& manner_of,
              const std::function<void(Rank& rank, int step, const Rank::Work& work)>& check) {
  shm::ForkedRanks ranks(kRanks, [&](const shm::ForkedRanks::Seat& seat) {
    Rank rank(seat, manner_of);
    for (int step = 0; step < kSteps; ++step) {
      const Rank::Work work = rank.Step(step);
      rank.ExpectMeans(step);
      check(rank, step, work);
    }
    EXPECT_EQ(rank.reducer().Buckets().size(), 1U);
  });
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ranks.Wait(rank), 0);
}

constexpr int64_t kStaged = 2;  // To the host, all of the bucket at once, and back.

// The last rank adds to zeros instead: it neither packs nor copies.
TEST(GpuRanks, TakeTwoLaunchesForAllNewGradientsOfABucket) {
  const auto is_last = [](int rank) { return rank + 1 == kRanks; };
  RunRanks([&](int rank, int, size_t) { return is_last(rank) ? Manner::kOver : Manner::kNew; },
           [&](Rank& rank, int step, const Rank::Work& work) {
             if (step == 0) {
               EXPECT_EQ(work.launches, 0);
               EXPECT_EQ(work.copies, kStaged + int64_t{kParameters} - 1);
               EXPECT_EQ(work.slot_bytes, rank.reducer().slot_bytes());
               EXPECT_GT(work.slot_bytes, 0);
               return;
             }
             EXPECT_EQ(work.launches, is_last(rank.rank()) ? 0 : 2);
             EXPECT_EQ(work.copies, kStaged);
             EXPECT_EQ(work.slot_bytes, 0);
             EXPECT_EQ(rank.reducer().slot_bytes() > 0, is_last(rank.rank()));
           });
}

// Nothing is copied after the first step, in which all of them get a slot.
TEST(GpuRanks, ReduceWhatIsHereOnOneAndThereOnAnother) {
  const auto any = [](int rank, int step, size_t parameter) {
    return static_cast<Manner>(Draw(rank, step, parameter, 1000) % 3);
  };
  RunRanks(any, [](Rank&, int step, const Rank::Work& work) {
    if (step == 0) return;
    EXPECT_LE(work.launches, 2);
    EXPECT_EQ(work.copies, kStaged);
    EXPECT_EQ(work.slot_bytes, 0);
  });
}

}  // namespace
}  // namespace mydist::testing
