// CudaDevice where CUDA says no: the error is told once, nothing of it is left behind, for us or
// for the caller, and nothing leaks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/status_checks.h"
#include "gpu/cuda_device.h"
#include "gpu/host_cuda/host_cuda.h"
#include "memory/device/device_memory.h"

namespace mydist::cuda {
namespace {

using host_cuda::FailNext;
using host_cuda::TakeCensus;
using ::testing::HasSubstr;

std::unique_ptr<CudaDevice> Open(int index) {
  auto device = CudaDevice::Open(index);
  ExpectOk(device.status());
  return std::move(device).value();
}

// One of each kind, as the device takes it.
struct Scene {
  explicit Scene(CudaDevice& own)
      : device(own),
        stream(*device.CreateStream()),
        memory(*device.Allocate(4096)),
        pinned(*device.AllocatePinned(4096)),
        event(*device.Record(stream)) {}

  CudaDevice& device;
  const StreamHandle stream;
  const std::shared_ptr<uint8_t> memory;
  const std::shared_ptr<uint8_t> pinned;
  const EventPointer event;
};

struct Call {
  std::string cuda;  // The one that fails.
  std::function<Status(Scene&)> work;
};

Status ConvertOne(Scene& scene) {
  const ConvertSegment segment = {scene.memory.get(), scene.memory.get() + 2048, 512};
  return scene.device.Convert({&segment, 1}, {.factor = {.multiplier = 2.0}}, scene.stream);
}

const std::vector<Call>& Calls() {
  static const auto* calls = new std::vector<Call>{
      {"cudaStreamCreateWithPriority", [](Scene& s) { return s.device.CreateStream().status(); }},
      {"cudaDeviceGetStreamPriorityRange",
       [](Scene& s) { return s.device.CreateStream().status(); }},
      {"cudaStreamIsCapturing", [](Scene& s) { return s.device.IsCapturing(s.stream).status(); }},
      {"cudaEventRecord", [](Scene& s) { return s.device.Record(s.stream).status(); }},
      {"cudaStreamWaitEvent", [](Scene& s) { return s.device.Wait(s.stream, *s.event); }},
      {"cudaEventQuery", [](Scene& s) { return s.device.IsOver(*s.event).status(); }},
      {"cudaEventQuery", [](Scene& s) { return s.device.Block(*s.event); }},
      {"cudaMemcpyAsync",
       [](Scene& s) { return s.device.Copy(s.memory.get(), s.pinned.get(), 100, s.stream); }},
      {"cudaLaunchKernel", ConvertOne},
  };
  return *calls;
}

// Also where the thread has no GPU of its own, and where it has another one.
TEST(CudaFaults, AreToldOnceAndLeaveNothingBehind) {
  const auto device = Open(0);
  Scene scene(*device);
  for (const bool has_another : {false, true}) {
    std::thread([&] {
      if (has_another) {
        ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
      }
      for (const Call& call : Calls()) {
        SCOPED_TRACE(call.cuda);
        FailNext(call.cuda, cudaErrorInvalidValue);
        const Status status = call.work(scene);
        ExpectError(status, StatusCode::kInternal, {"invalid argument (cudaErrorInvalidValue)"});
        EXPECT_EQ(host_cuda::LastError(), cudaSuccess);
        ExpectOk(call.work(scene));
        EXPECT_EQ(host_cuda::LastError(), cudaSuccess);
        int current = -1;
        EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
        EXPECT_EQ(current, has_another ? 2 : 0);
      }
    }).join();
  }
  EXPECT_TRUE(device->Block(**device->Record(scene.stream)).ok());
}

TEST(CudaFaults, AGpuThatDoesNotOpenLeavesNothing) {
  const host_cuda::Census before = TakeCensus();
  for (const char* call : {"cudaGetDeviceCount", "cudaInitDevice", "cuDeviceGet",
                           "cuDevicePrimaryCtxRetain", "cudaDeviceGetPCIBusId", "cuCtxPushCurrent",
                           "cudaFuncGetAttributes", "cudaDeviceGetAttribute"}) {
    FailNext(call, cudaErrorUnknown);
    EXPECT_FALSE(CudaDevice::Open(1).ok()) << call;
    EXPECT_EQ(TakeCensus(), before) << call;
    EXPECT_EQ(host_cuda::LastError(), cudaSuccess) << call;
    EXPECT_NE(Open(1), nullptr);
    EXPECT_EQ(TakeCensus(), before) << call;
  }
}

TEST(CudaFaults, ADeviceTakesAllWithIt) {
  const host_cuda::Census before = TakeCensus();
  {
    const auto device = Open(1);
    Scene scene(*device);
    for (const Call& call : Calls()) EXPECT_TRUE(call.work(scene).ok()) << call.cuda;
    EXPECT_TRUE(device->Block(**device->Record(scene.stream)).ok());
  }
  EXPECT_EQ(TakeCensus(), before);
}

TEST(CudaFaults, SpareMemoryIsGivenBackBeforeThereIsNone) {
  const auto device = Open(2);
  constexpr int64_t kMost = static_cast<int64_t>(host_cuda::kGpuBytes);
  // Small and large ones by turns, so that no spare one serves.
  for (const int64_t bytes : {kMost / 16, kMost - (1 << 20), kMost / 16, kMost - (1 << 20)}) {
    const auto memory = device->Allocate(bytes);
    ExpectOk(memory.status());
  }
  EXPECT_EQ(host_cuda::LastError(), cudaSuccess);
}

// As torch's allocator has it: most of a GPU in blocks that nobody uses.
class Hoard {
 public:
  Hoard(CudaDevice* device, size_t bytes) : device_(device) {
    const Status status = device->CallWithCurrent([&] {
      EXPECT_EQ(cudaMalloc(&memory_, bytes), cudaSuccess);
      return Status::Ok();
    });
    ExpectOk(status);
    current_ = this;
    OnMemoryShortage([](int gpu) noexcept { current_->GiveBack(gpu); });
  }
  ~Hoard() {
    OnMemoryShortage(nullptr);
    EXPECT_TRUE(device_
                    ->CallWithCurrent([&] {
                      EXPECT_EQ(cudaFree(memory_), cudaSuccess);
                      return Status::Ok();
                    })
                    .ok());
  }
  Hoard(const Hoard&) = delete;
  Hoard& operator=(const Hoard&) = delete;

  int times_asked() const { return times_asked_; }

 private:
  void GiveBack(int gpu) {
    ++times_asked_;
    int current_gpu = -1;
    EXPECT_EQ(cudaGetDevice(&current_gpu), cudaSuccess);
    EXPECT_EQ(current_gpu, device_->index());
    EXPECT_EQ(gpu, device_->index());
    EXPECT_EQ(cudaFree(std::exchange(memory_, nullptr)), cudaSuccess);
  }

  static inline Hoard* current_ = nullptr;
  CudaDevice* const device_;
  void* memory_ = nullptr;
  int times_asked_ = 0;
};

constexpr int64_t kHalf = static_cast<int64_t>(host_cuda::kGpuBytes) / 2;

// From a thread that has no GPU, while another one captures a stream and allows nothing unsafe.
TEST(CudaFaults, OthersGiveBackMemoryBeforeThereIsNone) {
  const auto device = Open(2);
  Hoard hoard(device.get(), host_cuda::kGpuBytes - (1 << 20));
  cudaStream_t theirs = nullptr;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&theirs, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(theirs, cudaStreamCaptureModeGlobal), cudaSuccess);
  std::thread([&] {
    const auto memory = device->Allocate(kHalf);
    ExpectOk(memory.status());
    EXPECT_EQ(host_cuda::LastError(), cudaSuccess);
    EXPECT_EQ(hoard.times_asked(), 1);
    // Nobody has any more.
    EXPECT_THAT(device->Allocate(2 * kHalf).status().message(), HasSubstr("bytes of GPU memory"));
    EXPECT_EQ(hoard.times_asked(), 2);
    EXPECT_EQ(host_cuda::LastError(), cudaSuccess);
  }).join();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(theirs, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(theirs), cudaSuccess);
}

// A GPU's memory does not help where the host's is short.
TEST(CudaFaults, PinnedMemoryIsNotAskedOfOthers) {
  const auto device = Open(2);
  const Hoard hoard(device.get(), 1 << 20);
  EXPECT_FALSE(device->AllocatePinned(4 * kHalf).ok());
  EXPECT_EQ(hoard.times_asked(), 0);
}

TEST(CudaFaults, AGpuThatIsLostSaysSoAndCanBeLetGo) {
  auto device = Open(2);
  auto scene = std::make_unique<Scene>(*device);
  host_cuda::BreakGpu(2, cudaErrorIllegalAddress);
  for (const Call& call : Calls()) {
    const Status status = call.work(*scene);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << call.cuda;
    EXPECT_THAT(status.message(), HasSubstr("can no longer use that GPU")) << call.cuda;
  }
  scene.reset();
  device.reset();
  host_cuda::RepairGpu(2);
}

TEST(CudaFaults, WorkGoesOnWhileSomebodyCaptures) {
  const auto device = Open(0);
  Scene scene(*device);
  cudaStream_t theirs = nullptr;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&theirs, cudaStreamDefault), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(theirs, cudaStreamCaptureModeGlobal), cudaSuccess);
  for (const Call& call : Calls()) {
    const Status status = call.work(scene);
    EXPECT_TRUE(status.ok()) << call.cuda << ": " << status.ToString();
  }
  EXPECT_TRUE(device->Allocate(12345).ok());
  EXPECT_TRUE(device->AllocatePinned(12345).ok());
  EXPECT_TRUE(device->IsCapturing({theirs}).value());
  EXPECT_TRUE(device->IsCapturing({}).value()) << "work on the default stream would end it";
  EXPECT_FALSE(device->IsCapturing(scene.stream).value());
  EXPECT_EQ(host_cuda::LastError(), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(theirs, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(theirs), cudaSuccess);
}

}  // namespace
}  // namespace mydist::cuda
