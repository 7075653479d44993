// Gradients on a GPU: reduced behind what the streams of backward have written, and in front of
// what the stream that steps reads; side by side in torch's own memory, and without a host waiting.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <memory>

#include "torch/gpu_test.h"
#include "torch/gradients/gradient_reducer.h"

namespace mydist::testing {
namespace {

using ::testing::HasSubstr;

using Floats = std::vector<float>;

const std::vector<Floats> kGradients = {{1, 2, 3}, {4, 5, 6, 7}, {8}};

class GpuGradients : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    stepping_ = std::make_unique<OnStream>(cuda_.NewStream(0));
    backward_ = {cuda_.NewStream(0), cuda_.NewStream(0)};
  }
  void TearDown() override {
    reducer_->Remove();
    parameters_.clear();
    reducer_.reset();
    stepping_.reset();
    GpuTest::TearDown();
  }

  // Whose gradients become three times as large.
  void Register(WireFormat wire_format = WireFormat::kAsIs) {
    reducer_ = std::make_shared<GradientReducer>(GradientReducerOptions{
        .reduction = {.op = ReduceOp::kSum, .prescale = 3.0}, .wire_format = wire_format});
    for (const Floats& values : kGradients) {
      parameters_.push_back(cuda_.Make(Floats(values.size())));
      parameters_.back().set_requires_grad(true);
      reducer_->AddParameter(parameters_.back(), "p" + std::to_string(parameters_.size()), "", 0);
    }
  }

  void MakeGradients() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const OnStream on(StreamOf(i));
      parameters_[i].mutable_grad() = cuda_.Make(kGradients[i]);
    }
  }
  // Over those that are there, behind what the caller's stream has done with them.
  void WriteGradients() {
    const at::NoGradGuard no_grad;
    FakeDevice& gpu = cuda_.gpu(0);
    const Result<EventPointer> before = gpu.Record(cuda_.Current(0));
    ASSERT_TRUE(before.ok()) << before.status().ToString();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const OnStream on(StreamOf(i));
      ASSERT_TRUE(gpu.Wait(cuda_.Current(0), **before).ok());
      parameters_[i].mutable_grad().copy_(cuda_.Make(kGradients[i]));
    }
  }
  std::vector<const void*> Places() const {
    std::vector<const void*> places;
    for (const at::Tensor& parameter : parameters_) {
      places.push_back(parameter.grad().const_data_ptr());
    }
    return places;
  }

  // As autograd does: each hook on the stream of its node, and the caller's stream behind all.
  void Backward() {
    MakeGradients();
    EnqueueAll();
  }
  void EnqueueAll() {
    for (size_t i = parameters_.size(); i-- > 0;) {
      const OnStream on(StreamOf(i));
      reducer_->OnGradient(i);
    }
    FakeDevice& gpu = cuda_.gpu(0);
    for (const c10::Stream& stream : backward_) {
      const Result<EventPointer> last = gpu.Record(cuda_.NativeOf(stream));
      ASSERT_TRUE(last.ok()) << last.status().ToString();
      ASSERT_TRUE(gpu.Wait(cuda_.Current(0), **last).ok());
    }
  }
  // The last to come has another one than those before.
  static at::Device DeviceAt(int index) { return FakeCuda::DeviceAt(index); }
  const c10::Stream& StreamOf(size_t parameter) const { return backward_[parameter == 0 ? 0 : 1]; }

  void ExpectTripled() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Floats expected = kGradients[i];
      for (float& value : expected) value *= 3;
      EXPECT_EQ(cuda_.Read(parameters_[i].grad()), expected);
    }
  }

  std::shared_ptr<GradientReducer> reducer_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<OnStream> stepping_;
  std::vector<c10::Stream> backward_;
};
INSTANTIATE_TEST_SUITE_P(Paces, GpuGradients, kEveryPace, NameOfPace);

TEST_P(GpuGradients, LieSideBySideAndStayThere) {
  Register();
  Backward();
  reducer_->Synchronize();
  EXPECT_EQ(reducer_->slot_bytes(), 8 * int64_t{sizeof(float)});
  const std::vector<std::vector<std::string>> bucket = {{"p3", "p2", "p1"}};
  EXPECT_EQ(reducer_->Buckets(), bucket);
  const auto* const begin = parameters_[2].grad().const_data_ptr<float>();
  EXPECT_EQ(parameters_[1].grad().const_data_ptr<float>(), begin + 1);
  EXPECT_EQ(parameters_[0].grad().const_data_ptr<float>(), begin + 5);
  EXPECT_EQ(parameters_[0].grad().device(), DeviceAt(0));
  ExpectTripled();
}

// Once to their slots; whoever makes new ones again has them reduced where they lie.
TEST_P(GpuGradients, GoToTheirSlotsOnlyOnce) {
  Register();
  for (int step = 0; step < 4; ++step) {
    MakeGradients();
    const std::vector<const void*> places = Places();
    const DeviceCounts before = cuda_.gpu(0).counts();
    EnqueueAll();
    EXPECT_EQ(cuda_.gpu(0).counts().copies, before.copies);
    reducer_->Synchronize();
    EXPECT_EQ(cuda_.gpu(0).counts().blocks, before.blocks);
    EXPECT_EQ(reducer_->copied_bytes(), 32) << "in the first step";
    EXPECT_EQ(reducer_->slot_bytes(), step == 0 ? 32 : 0);
    EXPECT_EQ(Places() == places, step > 0);
    ExpectTripled();
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }
}

// Autograd gives both gradients of a sum one memory, and those of a cat parts of one: where the one
// lies it would find the other's result. Nor does what the caller gave to backward change.
TEST_P(GpuGradients, OfOneMemoryAreReducedOnce) {
  Register();
  parameters_.resize(1);
  parameters_.push_back(cuda_.Make(Floats(3)));
  parameters_.back().set_requires_grad(true);
  reducer_->AddParameter(parameters_.back(), "like p1", "", 0);
  at::Tensor whole = cuda_.Make({1, 2, 3});
  at::Tensor longer = cuda_.Make({1, 2, 3, 4});
  for (const at::Tensor& given : {at::Tensor(), whole, longer, at::Tensor(), whole, longer}) {
    for (at::Tensor& parameter : parameters_) {
      parameter.mutable_grad() = cuda_.Make({1, 2, 3});
      if (given.defined()) parameter.mutable_grad().set_(given.storage(), 0, {3});
    }
    const int64_t copied = reducer_->copied_bytes();
    reducer_->OnGradient(3);
    reducer_->OnGradient(0);
    reducer_->Synchronize();
    EXPECT_EQ(reducer_->copied_bytes() - copied, given.defined() || copied == 0 ? 24 : 0);
    for (at::Tensor& parameter : parameters_) {
      EXPECT_EQ(cuda_.Read(parameter.grad()), Floats({3, 6, 9}));
      parameter.mutable_grad().reset();
    }
  }
  EXPECT_EQ(cuda_.Read(whole), Floats({1, 2, 3}));
  EXPECT_EQ(cuda_.Read(longer), Floats({1, 2, 3, 4}));
}

TEST_P(GpuGradients, LeaveTheirMemoryWithTheLastSlot) {
  std::vector<GradientSlots::Extent> extents;
  for (size_t index = 0; index < 2; ++index) {
    extents.push_back(
        {.index = index, .device = DeviceAt(0), .dtype = at::kFloat, .element_count = 4});
  }
  Register();
  GradientSlots slots;
  slots.Add(extents);
  at::Tensor kept = slots.Take(1, {4}, at::kFloat, DeviceAt(0));
  slots.GiveUp(0);
  EXPECT_EQ(slots.bytes(), 16);
  EXPECT_FALSE(slots.Take(0, {4}, at::kFloat, DeviceAt(0)).defined());
  slots.GiveUp(1);
  slots.GiveUp(1);
  EXPECT_EQ(slots.bytes(), 0);
  EXPECT_EQ(slots.GpuMemory().size(), 1);
  kept.reset();
  EXPECT_EQ(slots.GpuMemory().size(), 0);
}

// Not before whoever waited for them last has read them, on whatever stream.
TEST_P(GpuGradients, LeaveTheirMemoryBehindWhoeverWaitedForThem) {
  Register();
  Backward();
  reducer_->Synchronize();
  FakeDevice& gpu = cuda_.gpu(0);
  const Result<EventPointer> first = gpu.Record(cuda_.Current(0));
  {
    const OnStream other(cuda_.NewStream(0));
    ASSERT_TRUE(first.ok() && gpu.Wait(cuda_.Current(0), **first).ok());
    WriteGradients();
    EnqueueAll();
    reducer_->Synchronize();
    std::vector<MemoryRange> read;
    for (const at::Tensor& parameter : parameters_) {
      const at::Tensor& gradient = parameter.grad();
      read.push_back({gradient.const_data_ptr(), static_cast<int64_t>(gradient.nbytes())});
    }
    const Operation step{.name = "the optimizer", .reads = read, .writes = {}, .work = [] {}};
    EXPECT_TRUE(gpu.Enqueue(cuda_.Current(0), step).ok());
  }
  for (int i = 0; i < 2; ++i) {
    Backward();
    reducer_->Synchronize();
  }
  EXPECT_EQ(reducer_->slot_bytes(), 0);
  ExpectTripled();
  // Or where autograd has left them.
  reducer_->SetBufferViews(false);
  const int64_t copied = reducer_->copied_bytes();
  Backward();
  reducer_->Synchronize();
  EXPECT_EQ(reducer_->copied_bytes(), copied);
  ExpectTripled();
}

// The engine casts them, and reads and writes them where they lie.
TEST_P(GpuGradients, AreCastOnTheWay) {
  Register(WireFormat::kFloat16);
  for (int step = 0; step < 3; ++step) {
    Backward();
    const int64_t blocks = cuda_.gpu(0).counts().blocks;
    reducer_->Synchronize();
    EXPECT_EQ(cuda_.gpu(0).counts().blocks, blocks);
    ExpectTripled();
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }
  EXPECT_EQ(reducer_->slot_bytes(), 0);
  EXPECT_EQ(reducer_->copied_bytes(), 0);
}

// Such as two that autograd made views of one tensor: what is reduced would be reduced again.
TEST_P(GpuGradients, AreCastBeforeWhereSomebodyElseLooksAtThem) {
  Register(WireFormat::kFloat16);
  c10::Storage other;
  {
    const OnStream on(StreamOf(2));
    parameters_[2].mutable_grad() = cuda_.Make({8});
    other = parameters_[2].grad().storage();
    reducer_->OnGradient(2);
  }
  EXPECT_EQ(reducer_->copied_bytes(), 2);
  reducer_->Synchronize();
  EXPECT_EQ(cuda_.Read(parameters_[2].grad()), Floats{24});
}

// In the first step nothing is enqueued before.
TEST_P(GpuGradients, AreNotEnqueuedWhereTheStepIsCaptured) {
  Register();
  Backward();
  cuda_.gpu(0).BeginCapture(cuda_.Current(0));
  EXPECT_THAT(ErrorOf([&] { reducer_->Synchronize(); }), HasSubstr("is being captured"));
  cuda_.gpu(0).EndCapture();
  reducer_->Synchronize();
  ExpectTripled();
}

TEST_P(GpuGradients, AreNotCaptured) {
  Register();
  cuda_.gpu(0).BeginCapture(cuda_.NativeOf(StreamOf(0)));
  parameters_[0].mutable_grad() = cuda_.Make(kGradients[0]);
  {
    const OnStream on(StreamOf(0));
    EXPECT_THAT(ErrorOf([&] { reducer_->OnGradient(0); }),
                HasSubstr("gradient of 'p1': the current stream of cuda:0 is being captured"));
    reducer_->SetEnabled(false);
    EXPECT_EQ(ErrorOf([&] { reducer_->OnGradient(0); }), "") << "inside no_sync()";
  }
  cuda_.gpu(0).EndCapture();
}

}  // namespace
}  // namespace mydist::testing
