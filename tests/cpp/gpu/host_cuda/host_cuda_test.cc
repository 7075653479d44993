// That HostCuda finds what it is there to find.
#include "gpu/host_cuda/host_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace mydist::host_cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// On a thread of its own, which has no GPU yet.
void OnThread(const std::function<void()>& work) { std::thread(work).join(); }

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

cudaEvent_t NewEvent() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  return event;
}

uint8_t* NewMemory(size_t bytes) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
  return static_cast<uint8_t*>(memory);
}

TEST(HostCuda, FindsTheStreamsAndEventsOfOthers) {
  OnThread([] {
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    const cudaStream_t stream = NewStream();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const cudaEvent_t event = NewEvent();
    const Complaints complaints;
    EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(Launch(nullptr, stream, [] {}), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    EXPECT_THAT(complaints.texts(),
                ElementsAre(HasSubstr("the event of one GPU"), HasSubstr("a stream of another GPU"),
                            HasSubstr("no such event"), HasSubstr("no such stream")));
  });
}

TEST(HostCuda, FindsCopiesThatAreNone) {
  OnThread([] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const cudaStream_t stream = NewStream();
    uint8_t* const memory = NewMemory(100);
    std::vector<uint8_t> pageable(100);
    const Complaints complaints;
    EXPECT_NE(cudaMemcpyAsync(memory, pageable.data(), 100, cudaMemcpyDefault, stream),
              cudaSuccess);
    EXPECT_NE(cudaMemcpyAsync(memory, memory + 51, 50, cudaMemcpyDefault, stream), cudaSuccess);
    EXPECT_NE(cudaMemcpyAsync(memory, memory + 50, 50, cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    EXPECT_THAT(complaints.texts(), ElementsAre(HasSubstr("not pinned"), HasSubstr("ends before"),
                                                HasSubstr("another kind")));
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

TEST(HostCuda, FindsAWriteBeyondTheEnd) {
  OnThread([] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    uint8_t* const memory = NewMemory(100);
    memory[100] = 1;
    const Complaints complaints;
    EXPECT_NE(cudaFree(memory), cudaSuccess);
    EXPECT_NE(cudaFree(memory), cudaSuccess);
    EXPECT_THAT(complaints.texts(),
                ElementsAre(HasSubstr("beyond its end"), HasSubstr("not the beginning")));
  });
}

TEST(HostCuda, RefusesWhatACaptureForbidsUnlessTheThreadKnows) {
  OnThread([] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const cudaStream_t stream = NewStream();
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    OnThread([] {
      EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
      void* memory = nullptr;
      EXPECT_EQ(cudaMalloc(&memory, 10), cudaErrorStreamCaptureUnsupported);
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
      EXPECT_EQ(cudaMalloc(&memory, 10), cudaSuccess);
      EXPECT_EQ(cudaFree(memory), cudaSuccess);
    });
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

}  // namespace
}  // namespace mydist::host_cuda
