// Tensors on GPUs through whole engines: what callers' streams do, what the engine does, and the
// order between them, on devices that fail the test when there is none.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "device/fake_device.h"
#include "runtime/engine_job.h"

namespace mydist {
namespace {

using testing::FakeDevice;

// A caller with tensors on a GPU and a stream of its own, as torch's current one.
class GpuCaller {
 public:
  explicit GpuCaller(std::shared_ptr<FakeDevice> device)
      : device_(std::move(device)), stream_(*device_->CreateStream()) {}

  // Its memory goes now.
  ~GpuCaller() {
    const Result<EventPointer> last = device_->Record(stream_);
    if (last.ok()) static_cast<void>(device_->Block(**last));
  }

  struct Tensor {
    std::shared_ptr<uint8_t> memory;
    int64_t count = 0;
    std::shared_ptr<DeviceOrder> order = std::make_shared<DeviceOrder>();
  };

  // Written by the caller's stream, some time.
  Tensor Make(const std::vector<float>& values) {
    Tensor tensor = Empty(static_cast<int64_t>(values.size()));
    if (values.empty()) return tensor;
    const int64_t bytes = tensor.count * int64_t{sizeof(float)};
    const auto staging = *device_->AllocatePinned(bytes);
    ExpectOk(device_->HostWrites(staging.get(), bytes, "make"));
    std::memcpy(staging.get(), values.data(), static_cast<size_t>(bytes));
    ExpectOk(device_->Copy(tensor.memory.get(), staging.get(), bytes, stream_));
    staging_.push_back(staging);
    return tensor;
  }

  Tensor Empty(int64_t count) {
    Tensor tensor;
    tensor.memory = *device_->Allocate(std::max<int64_t>(4, count * int64_t{sizeof(float)}));
    tensor.count = count;
    return tensor;
  }

  Submission InPlace(OpKind op, const std::string& name, const Tensor& tensor) {
    Submission submission;
    submission.request.op = op;
    submission.request.name = name;
    submission.request.dtype = DataType::kFloat32;
    submission.request.shape = Shape({tensor.count});
    submission.request.device = device_->index();
    submission.input = tensor.memory.get();
    submission.output = tensor.memory.get();
    submission.order = tensor.order;
    submission.keep_alive = tensor.memory;
    tensor.order->ready = *device_->Record(stream_);
    return submission;
  }

  // The result goes to memory that `output` gets when its size is known.
  Submission Late(OpKind op, const std::string& name, const Tensor& input, Tensor* output) {
    Submission submission = InPlace(op, name, input);
    submission.output = nullptr;
    submission.allocate = [this, output, order = input.order](const Shape& shape) -> Result<void*> {
      *output = Empty(shape.ElementCount().value());
      // Something else had this memory before, on the caller's stream.
      if (output->count > 0) {
        ExpectOk(device_->Convert({{{output->memory.get(), output->memory.get(), output->count}}},
                                  {.factor = {.multiplier = 2.0, .divisor = 1}}, stream_));
      }
      order->allocated = *device_->Record(stream_);
      output->order = order;
      return static_cast<void*>(output->memory.get());
    };
    return submission;
  }

  // As the caller's stream sees it behind the collective.
  std::vector<float> Read(const Tensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.count));
    if (tensor.count == 0) return values;
    EXPECT_NE(tensor.order->done, nullptr);
    if (tensor.order->done == nullptr) return values;
    ExpectOk(device_->Wait(stream_, *tensor.order->done));
    const int64_t bytes = tensor.count * int64_t{sizeof(float)};
    const auto staging = *device_->AllocatePinned(bytes);
    ExpectOk(device_->Copy(staging.get(), tensor.memory.get(), bytes, stream_));
    ExpectOk(device_->Block(**device_->Record(stream_)));
    ExpectOk(device_->HostReads(staging.get(), bytes, "read"));
    std::memcpy(values.data(), staging.get(), static_cast<size_t>(bytes));
    return values;
  }

 private:
  static void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }

  const std::shared_ptr<FakeDevice> device_;
  const StreamHandle stream_;
  std::vector<std::shared_ptr<uint8_t>> staging_;
};

// Ranks with a GPU each; the engine's own is the caller's.
class GpuJob {
 public:
  explicit GpuJob(int size, JobOptions options = {}) {
    for (int rank = 0; rank < size; ++rank) {
      devices_.push_back(std::make_shared<FakeDevice>(
          testing::FakeDeviceOptions{.index = rank % 2,
                                     .seed = static_cast<uint64_t>(rank) + 7,
                                     .host_order = testing::HostOrder::kOneForAll}));
    }
    options.devices = [this](int rank) {
      return [device = devices_[static_cast<size_t>(rank)]](
                 int index) -> Result<std::shared_ptr<Device>> {
        EXPECT_EQ(index, device->index());
        return std::shared_ptr<Device>(device);
      };
    };
    job_ = std::make_unique<EngineJob>(size, options);
  }

  void OnEveryRank(const std::function<void(EngineRank&, GpuCaller&)>& body) {
    job_->OnEveryRank([&](EngineRank& rank) {
      GpuCaller caller(devices_[static_cast<size_t>(rank.rank())]);
      body(rank, caller);
    });
  }
  FakeDevice& device(int rank) { return *devices_[static_cast<size_t>(rank)]; }

 private:
  std::vector<std::shared_ptr<FakeDevice>> devices_;
  std::unique_ptr<EngineJob> job_;
};

std::vector<float> Numbers(int64_t count, int rank) {
  std::vector<float> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), static_cast<float>(rank * 1000));
  return numbers;
}

std::vector<float> SumOfNumbers(int64_t count, int size) {
  std::vector<float> sum(static_cast<size_t>(count), 0.0F);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> numbers = Numbers(count, rank);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += numbers[i];
  }
  return sum;
}

Status RunAll(EngineRank& rank, std::vector<Submission> tensors) {
  return rank.Wait(rank.engine->Submit(std::move(tensors), Pace::kNow));
}

class EngineOnGpu : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, EngineOnGpu, ::testing::Values(1, 2, 3));

TEST_P(EngineOnGpu, FusedAllreducesAreOrderedBehindTheCallersStream) {
  GpuJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    for (int step = 0; step < 3; ++step) {
      std::vector<GpuCaller::Tensor> tensors;
      std::vector<Submission> submissions;
      for (const int64_t count : {5, 0, 1000, 70001}) {
        tensors.push_back(caller.Make(Numbers(count, rank.rank())));
        submissions.push_back(
            caller.InPlace(OpKind::kAllreduce, "x" + std::to_string(count), tensors.back()));
      }
      const Status status = RunAll(rank, std::move(submissions));
      EXPECT_TRUE(status.ok()) << status.ToString();
      for (const GpuCaller::Tensor& tensor : tensors) {
        EXPECT_EQ(caller.Read(tensor), SumOfNumbers(tensor.count, rank.size()));
      }
    }
  });
}

TEST_P(EngineOnGpu, OutputsAreWrittenBehindWhateverHadTheirMemory) {
  GpuJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const int64_t count = 12 * rank.size();
    const GpuCaller::Tensor input = caller.Make(Numbers(count, rank.rank()));
    GpuCaller::Tensor gathered;
    const Status status = rank.Run(caller.Late(OpKind::kAllgather, "gather", input, &gathered));
    EXPECT_TRUE(status.ok()) << status.ToString();
    std::vector<float> expected;
    for (int r = 0; r < rank.size(); ++r) {
      const std::vector<float> part = Numbers(count, r);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_EQ(caller.Read(gathered), expected);

    const GpuCaller::Tensor whole = caller.Make(Numbers(count, rank.rank()));
    GpuCaller::Tensor part;
    const Status scattered = rank.Run(caller.Late(OpKind::kReducescatter, "scatter", whole, &part));
    EXPECT_TRUE(scattered.ok()) << scattered.ToString();
    const std::vector<float> sum = SumOfNumbers(count, rank.size());
    const auto begin = sum.begin() + 12 * rank.rank();
    EXPECT_EQ(caller.Read(part), std::vector<float>(begin, begin + 12));

    const GpuCaller::Tensor dealt = caller.Make(Numbers(count, rank.rank()));
    GpuCaller::Tensor received;
    Submission alltoall = caller.Late(OpKind::kAlltoall, "alltoall", dealt, &received);
    alltoall.splits.assign(static_cast<size_t>(rank.size()), 12);
    const Status swapped = rank.Run(std::move(alltoall));
    EXPECT_TRUE(swapped.ok()) << swapped.ToString();
    std::vector<float> columns;
    for (int r = 0; r < rank.size(); ++r) {
      const std::vector<float> numbers = Numbers(count, r);
      const auto first = numbers.begin() + 12 * rank.rank();
      columns.insert(columns.end(), first, first + 12);
    }
    EXPECT_EQ(caller.Read(received), columns);
  });
}

TEST_P(EngineOnGpu, BroadcastReachesEveryGpu) {
  GpuJob job(GetParam());
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const GpuCaller::Tensor tensor = caller.Make(Numbers(3000, rank.rank()));
    Submission submission = caller.InPlace(OpKind::kBroadcast, "b", tensor);
    submission.request.root_rank = rank.size() - 1;
    const Status status = rank.Run(std::move(submission));
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(caller.Read(tensor), Numbers(3000, rank.size() - 1));
  });
}

// A mistake in the caller's part: nothing says when the input is there.
TEST(EngineOnGpuMistake, AnInputWithoutAnEventIsNoticed) {
  GpuJob job(1);
  job.OnEveryRank([&](EngineRank& rank, GpuCaller& caller) {
    const GpuCaller::Tensor tensor = caller.Make(Numbers(100, 0));
    Submission submission = caller.InPlace(OpKind::kAllreduce, "x", tensor);
    submission.request.reduce_op = ReduceOp::kSum;
    submission.request.prescale = 2.0;
    tensor.order->ready = nullptr;
    EXPECT_FALSE(rank.Run(std::move(submission)).ok());
  });
  EXPECT_NE(job.device(0).TakeViolation(), "");
}

TEST(EngineOnGpuMistake, ATensorOnAGpuNeedsOne) {
  EngineJob job(1);
  const auto device = std::make_shared<FakeDevice>();
  GpuCaller::Tensor tensor;
  GpuCaller caller(device);
  tensor = caller.Make(Numbers(10, 0));
  const Status status = job.rank(0).Run(caller.InPlace(OpKind::kAllreduce, "x", tensor));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("no GPUs"), std::string::npos) << status.ToString();
}

}  // namespace
}  // namespace mydist
