#include "torch/fake_cuda.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "torch/gpu_order.h"
#include "torch/tensor_adapter.h"

namespace mydist::testing {
namespace {

constexpr int kGpus = FakeCuda::kGpuCount;

// Of this thread, as CUDA has it.
thread_local c10::DeviceIndex current_gpu = 0;
thread_local std::array<c10::StreamId, kGpus> current_streams{};

// Of a device that is lost there is none, and the test cannot go on.
template <typename T>
T Need(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return std::move(result).value();
}

Status BlockOn(FakeDevice& device, StreamHandle stream) {
  MYDIST_ASSIGN_OR_RETURN(const EventPointer last, device.Record(stream));
  return device.Block(*last);
}

Status PutBehind(FakeDevice& device, StreamHandle stream, StreamHandle other) {
  MYDIST_ASSIGN_OR_RETURN(const EventPointer last, device.Record(other));
  return device.Wait(stream, *last);
}

c10::Stream StreamOf(const at::Device& device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return at::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return FakeCuda::DeviceAt(std::exchange(current_gpu, device.index()));
  }
  c10::Device getDevice() const override { return FakeCuda::DeviceAt(current_gpu); }
  void setDevice(c10::Device device) const override { current_gpu = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_gpu = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return StreamOf(device, current_streams.at(static_cast<size_t>(device.index())));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return StreamOf(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high) const override {
    if (device == FakeCuda::Pooled().device()) return FakeCuda::Pooled();
    return DeviceGuardImplInterface::getStreamFromGlobalPool(device, is_high);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& current = current_streams.at(static_cast<size_t>(stream.device_index()));
    return StreamOf(stream.device(), std::exchange(current, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return FakeCuda::Instance().NativeOf(stream).native;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kGpus; }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    FakeCuda::Instance().RecordOn(memory, stream);
  }
};

struct FakeAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override { return FakeCuda::Instance().Allocate(bytes); }
  void copy_data(void*, const void*, size_t) const override { FAIL() << "not for the host"; }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {
    if (const auto& empty = FakeCuda::Instance().on_empty_cache) empty();
  }
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    FakeCuda::Instance().RecordOn(memory, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*gpu*/) override {
    return {};
  }
  void resetAccumulatedStats(c10::DeviceIndex /*gpu*/) override {}
  void resetPeakStats(c10::DeviceIndex /*gpu*/) override {}
};

at::Tensor& Copy(at::Tensor& self, const at::Tensor& source, bool /*non_blocking*/) {
  FakeCuda::Instance().CopyTo(self, source);
  return self;
}

at::Tensor& Zero(at::Tensor& self) {
  FakeCuda::Instance().Zero(self);
  return self;
}

at::Tensor& Set(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef sizes,
                at::IntArrayRef /*strides*/) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor EmptyStrided(at::IntArrayRef sizes, at::IntArrayRef /*strides*/,
                        std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                        std::optional<at::Device> device, std::optional<bool> /*pin_memory*/) {
  return EmptyOn(device.value(), sizes, dtype.value());
}

at::Tensor EmptyPlain(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                      std::optional<bool> /*pin_memory*/,
                      std::optional<at::MemoryFormat> /*format*/) {
  return EmptyOn(device.value(), sizes, dtype.value());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &EmptyPlain);
  library.impl("empty_strided", &EmptyStrided);
  library.impl("copy_", &Copy);
  library.impl("zero_", &Zero);
  library.impl("set_.source_Storage_storage_offset", &Set);
}

}  // namespace

struct FakeCuda::Block {
  std::shared_ptr<uint8_t> memory;
  int64_t bytes;
  c10::Stream stream;
  std::vector<c10::Stream> recorded;
};

FakeCuda& FakeCuda::Instance() {
  static auto* const instance = [] {
    c10::SetAllocator(at::kCUDA, new FakeAllocator);
    const c10::impl::DeviceGuardImplRegistrar registrar(at::kCUDA, new FakeGuard);
    return new FakeCuda;
  }();
  return *instance;
}

void FakeCuda::Begin(Pace pace) {
  FakePluginParts parts;
  const auto process = std::make_shared<FakeProcess>();
  for (int index = 0; index < kGpuCount; ++index) {
    parts.devices.push_back(std::make_shared<FakeDevice>(
        FakeDeviceOptions{.index = index,
                          .identity = "0000:0" + std::to_string(index) + ":00.0",
                          .pace = pace,
                          .process = process}));
  }
  gpus_ = parts.devices;
  plugin_ = std::make_unique<FakePlugin>(std::move(parts));
  streams_ = {{nullptr, nullptr}};
  pooled_ = Need(gpu(0).CreateStream());
  current_streams.fill(0);
  current_gpu = 0;
}

std::string FakeCuda::End() {
  std::string violation;
  for (const auto& gpu : gpus_) {
    for (const Stream& stream : streams_) {
      if (stream.native != nullptr && stream.gpu != gpu.get()) continue;
      static_cast<void>(BlockOn(*gpu, {stream.native}));  // What fails has been noted.
    }
    if (gpu == gpus_.front()) static_cast<void>(BlockOn(*gpu, pooled_));
    violation = violation.empty() ? gpu->TakeViolation() : violation;
  }
  kept_.clear();
  plugin_.reset();
  gpus_.clear();
  return violation;
}

c10::Stream FakeCuda::NewStream(int gpu_index) {
  streams_.push_back({&gpu(gpu_index), Need(gpu(gpu_index).CreateStream()).native});
  return StreamOf(DeviceAt(gpu_index), static_cast<c10::StreamId>(streams_.size()) - 1);
}

StreamHandle FakeCuda::NativeOf(const c10::Stream& stream) const {
  if (stream.id() == kPooled) return pooled_;
  return {streams_.at(static_cast<size_t>(stream.id())).native};
}

StreamHandle FakeCuda::Current(int gpu) const { return CurrentStream(DeviceAt(gpu)); }

at::Tensor FakeCuda::Make(const std::vector<float>& values, int gpu_index) {
  at::Tensor tensor =
      EmptyOn(DeviceAt(gpu_index), {static_cast<int64_t>(values.size())}, at::kFloat);
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (bytes == 0) return tensor;
  FakeDevice& device = gpu(gpu_index);
  const auto pinned = Need(device.AllocatePinned(bytes));
  ExpectOk(device.HostWrites(pinned.get(), bytes, "the test"));
  std::memcpy(pinned.get(), values.data(), static_cast<size_t>(bytes));
  const StreamHandle stream = Current(gpu_index);
  ExpectOk(device.Copy(tensor.mutable_data_ptr(), pinned.get(), bytes, stream));
  kept_.push_back(pinned);  // Nobody waits: the host is not to know more than torch's would.
  return tensor;
}

std::vector<float> FakeCuda::Read(const at::Tensor& tensor) {
  const int gpu_index = tensor.device().index();
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (bytes == 0) return values;
  FakeDevice& device = gpu(gpu_index);
  const auto pinned = Need(device.AllocatePinned(bytes));
  const StreamHandle stream = Current(gpu_index);
  ExpectOk(device.Copy(pinned.get(), tensor.const_data_ptr(), bytes, stream));
  ExpectOk(BlockOn(device, stream));
  ExpectOk(device.HostReads(pinned.get(), bytes, "the test"));
  std::memcpy(values.data(), pinned.get(), static_cast<size_t>(bytes));
  return values;
}

void FakeCuda::Overwrite(FakeDevice& device, StreamHandle stream, const char* who,
                         const Block& block) {
  if (block.bytes == 0) return;
  ExpectOk(device.Enqueue(stream, {.name = who,
                                   .writes = {{block.memory.get(), block.bytes}},
                                   .work = [data = block.memory.get(), bytes = block.bytes] {
                                     std::memset(data, 0xEE, static_cast<size_t>(bytes));
                                   }}));
}

at::DataPtr FakeCuda::Allocate(size_t bytes) {
  const at::Device device = DeviceAt(current_gpu);
  const auto memory = Need(gpu(current_gpu).Allocate(static_cast<int64_t>(bytes)));
  const auto stream = StreamOf(device, current_streams.at(static_cast<size_t>(current_gpu)));
  auto* const block = new Block{memory, static_cast<int64_t>(bytes), stream, {}};
  Overwrite(gpu(current_gpu), NativeOf(stream), "the last owner of the memory", *block);
  return {memory.get(), block, &FreeBlock, device};
}

void FakeCuda::RecordOn(const at::DataPtr& memory, const c10::Stream& stream) {
  if (memory.get_deleter() != &FreeBlock) return;  // As torch: not from here.
  static_cast<Block*>(memory.get_context())->recorded.push_back(stream);
}

void FakeCuda::FreeBlock(void* block) {
  const std::unique_ptr<Block> freed(static_cast<Block*>(block));
  Instance().Reuse(*freed);
}

void FakeCuda::Reuse(Block& block) {
  if (block.bytes == 0) return;
  FakeDevice& device = gpu(block.stream.device_index());
  const StreamHandle stream = NativeOf(block.stream);
  for (const c10::Stream& other : block.recorded) {
    ExpectOk(PutBehind(device, stream, NativeOf(other)));
  }
  Overwrite(device, stream, "the next owner of the memory", block);
  kept_.push_back(block.memory);
}

void FakeCuda::CopyTo(const at::Tensor& target, const at::Tensor& source) {
  const int index = target.device().index();
  const Conversion conversion{.from = ToDataType(source.scalar_type()).value(),
                              .to = ToDataType(target.scalar_type()).value()};
  const ConvertSegment all{source.const_data_ptr(), target.mutable_data_ptr(), target.numel()};
  ExpectOk(conversion.IsCopy()
               ? gpu(index).Copy(all.target, all.source, static_cast<int64_t>(target.nbytes()),
                                 Current(index))
               : gpu(index).Convert({&all, 1}, conversion, Current(index)));
}

void FakeCuda::Zero(const at::Tensor& target) {
  const int index = target.device().index();
  void* const data = target.mutable_data_ptr();
  ExpectOk(gpu(index).Enqueue(
      Current(index), {.name = "zeros",
                       .writes = {{data, static_cast<int64_t>(target.nbytes())}},
                       .work = [data, bytes = target.nbytes()] { std::memset(data, 0, bytes); }}));
}

}  // namespace mydist::testing
