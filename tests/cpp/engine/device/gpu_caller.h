// GpuCaller: what torch is to an engine: a caller with tensors on a GPU and a stream of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/status_checks.h"
#include "engine/submission.h"
#include "fakes/fake_device.h"

namespace mydist::testing {

class GpuCaller {
 public:
  explicit GpuCaller(std::shared_ptr<FakeDevice> device)
      : device_(std::move(device)), stream_(*device_->CreateStream()) {}

  // Its memory goes now.
  ~GpuCaller() { Settle(); }

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

  // Waits for the caller's stream, and, when there is a tensor, for the engine to be through with
  // it. What went wrong is found elsewhere.
  void Settle(const Tensor& tensor) {
    if (tensor.order->done != nullptr) ExpectOk(device_->Wait(stream_, *tensor.order->done));
    Settle();
  }
  void Settle() {
    const Result<EventPointer> last = device_->Record(stream_);
    if (last.ok()) static_cast<void>(device_->Block(**last));
  }

  // What follows on the caller's stream waits until `is_let_go`.
  void Hold(const std::atomic<bool>& is_let_go) {
    ExpectOk(device_->Enqueue(stream_, {.name = "what the caller computes", .work = [&is_let_go] {
                                          while (!is_let_go) std::this_thread::yield();
                                        }}));
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
  const std::shared_ptr<FakeDevice> device_;
  const StreamHandle stream_;
  std::vector<std::shared_ptr<uint8_t>> staging_;
};

inline std::vector<float> Numbers(int64_t count, int rank) {
  std::vector<float> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), static_cast<float>(rank * 1000));
  return numbers;
}

inline std::vector<float> SumOfNumbers(int64_t count, int size) {
  std::vector<float> sum(static_cast<size_t>(count), 0.0F);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> numbers = Numbers(count, rank);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += numbers[i];
  }
  return sum;
}

}  // namespace mydist::testing
