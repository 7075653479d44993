// GpuJob: engines whose ranks have GPUs, and a NCCL if the test says so.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/gpu_caller.h"
#include "engine/engine_job.h"
#include "fakes/fake_plugin.h"

namespace mydist::testing {

inline constexpr int kNcclVersion = 23203;

struct GpuJobOptions {
  JobOptions job{};
  // Of a rank; default: none has NCCL.
  std::function<Result<int>(int rank)> nccl_version{};
  int gpus_per_rank = 1;
};

inline GpuJobOptions WithNccl(JobOptions job = {}) {
  return {.job = std::move(job), .nccl_version = [](int) -> Result<int> { return kNcclVersion; }};
}

// The engine's devices are the caller's. Ranks count their GPUs as they like: an odd one has its
// first at 1.
class GpuJob {
 public:
  explicit GpuJob(int size, GpuJobOptions options = {})
      : nccl_([this](nccl::Stream stream,
                     FakeNcclWork work) { streams_.Launch(stream, std::move(work)); },
              FakeNccl::Slowness{}) {
    for (int rank = 0; rank < size; ++rank) AddPlugin(rank, options);
    options.job.devices = [this](int rank) { return plugins_[static_cast<size_t>(rank)].get(); };
    job_ = std::make_unique<EngineJob>(size, options.job);
  }

  void OnEveryRank(const std::function<void(EngineRank&, GpuCaller&)>& body) {
    job_->OnEveryRank([&](EngineRank& rank) {
      GpuCaller caller(shared_device(rank.rank()));
      body(rank, caller);
    });
  }
  // The rank's first, or another of its GPUs.
  std::shared_ptr<FakeDevice> shared_device(int rank, int number = 0) {
    const auto& devices = devices_[static_cast<size_t>(rank)];
    return devices[(static_cast<size_t>(rank % 2) + static_cast<size_t>(number)) % devices.size()];
  }
  FakeDevice& device(int rank) { return *shared_device(rank); }
  EngineRank& rank(int r) { return job_->rank(r); }
  FakeNccl& nccl() { return nccl_; }
  void Shutdown() { job_->Shutdown(); }

 private:
  void AddPlugin(int rank, const GpuJobOptions& options) {
    auto& devices = devices_.emplace_back();
    const int count = options.gpus_per_rank + rank % 2;
    const auto process = std::make_shared<FakeProcess>();
    for (int index = 0; index < count; ++index) {
      const std::string own = "0000:" + std::to_string(10 + rank) + ":0" + std::to_string(index);
      devices.push_back(std::make_shared<FakeDevice>(
          FakeDeviceOptions{.index = index,
                            .identity = own,
                            .seed = static_cast<uint64_t>(rank * 10 + index) + 7,
                            .process = process}));
    }
    FakePluginParts parts{.devices = devices, .nccl = &nccl_, .streams = &streams_};
    if (options.nccl_version) parts.nccl_version = options.nccl_version(rank);
    plugins_.push_back(std::make_unique<FakePlugin>(std::move(parts)));
  }

  NcclStreams streams_;
  FakeNccl nccl_;
  std::vector<std::vector<std::shared_ptr<FakeDevice>>> devices_;  // Of each rank.
  std::vector<std::unique_ptr<FakePlugin>> plugins_;
  std::unique_ptr<EngineJob> job_;
};

// An allreduce of so many numbers by all ranks of the job, in a set of all of them.
inline void ExpectSum(EngineRank& rank, GpuCaller& caller, const std::string& name, int64_t count,
                      ProcessSetId set = kGlobalProcessSet) {
  const GpuCaller::Tensor tensor = caller.Make(Numbers(count, rank.rank()));
  Submission submission = caller.InPlace(OpKind::kAllreduce, name, tensor);
  submission.request.process_set = set;
  ExpectOk(rank.Run(std::move(submission)));
  EXPECT_EQ(caller.Read(tensor), SumOfNumbers(count, rank.size()));
}

inline Status RunAll(EngineRank& rank, std::vector<Submission> tensors) {
  return rank.Wait(rank.engine->Submit(std::move(tensors)));
}

// An allreduce of several tensors of one handle, which `run` submits and waits for.
inline void ExpectSums(EngineRank& rank, GpuCaller& caller,
                       const std::function<Status(std::vector<Submission>)>& run) {
  std::vector<GpuCaller::Tensor> tensors;
  std::vector<Submission> submissions;
  for (const int64_t count : {5, 0, 1000, 70001}) {
    tensors.push_back(caller.Make(Numbers(count, rank.rank())));
    submissions.push_back(
        caller.InPlace(OpKind::kAllreduce, "x" + std::to_string(count), tensors.back()));
  }
  ExpectOk(run(std::move(submissions)));
  for (const GpuCaller::Tensor& tensor : tensors) {
    EXPECT_EQ(caller.Read(tensor), SumOfNumbers(tensor.count, rank.size()));
  }
}

// The same as one bucket: pack, collective, unpack, and the host waits for nothing that its GPU
// does.
inline void ExpectFusedSum(GpuJob& job, EngineRank& rank, GpuCaller& caller) {
  ExpectSums(rank, caller, [&](std::vector<Submission> tensors) {
    const DeviceCounts before = job.device(rank.rank()).counts();
    const Status status = RunAll(rank, std::move(tensors));
    const DeviceCounts after = job.device(rank.rank()).counts();
    EXPECT_EQ(after.launches - before.launches, 2);
    EXPECT_EQ(after.operations - before.operations, 1);
    EXPECT_EQ(after.copies, before.copies);
    EXPECT_EQ(after.blocks, before.blocks);
    return status;
  });
}

// What `explain()` says about GPUs on this rank; empty: nothing.
inline std::string GpuFactOf(const EngineRank& rank) {
  std::string text;
  for (const Fact& fact : rank.engine->Explain()) {
    if (fact.topic.starts_with("GPU path")) {
      text += fact.topic + ": " + fact.choice + " (" + fact.reason + ")";
    }
  }
  return text;
}

// Of three ranks, 0 and 2 make a set, reduce in it, all reduce together, and the set is removed:
// again and again. `check` runs on the members while it is there.
inline void ReduceInPassingSets(
    GpuJob& job, int rounds,
    const std::function<void(EngineRank&, ProcessSetId)>& check = nullptr) {
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    for (int round = 0; round < rounds; ++round) {
      ProcessSetId set = 0;
      ASSERT_TRUE(AddSet(rank, {0, 2}, &set).ok());
      if (rank.rank() != 1) {
        const GpuCaller::Tensor tensor = caller.Make(Numbers(20, rank.rank() / 2));
        Submission submission = caller.InPlace(OpKind::kAllreduce, "x", tensor);
        submission.request.process_set = set;
        EXPECT_TRUE(rank.Run(std::move(submission)).ok());
        EXPECT_EQ(caller.Read(tensor), SumOfNumbers(20, 2));
        if (check) check(rank, set);
      }
      ExpectSum(rank, caller, "all", 20);
      if (rank.rank() != 1) EXPECT_TRUE(RemoveSet(rank, set).ok());
      EXPECT_EQ(GpuFactOf(rank).find("set "), std::string::npos);
    }
  });
}

}  // namespace mydist::testing
