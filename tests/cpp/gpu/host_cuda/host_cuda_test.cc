// That HostCuda finds what it is there to find.
#include "gpu/host_cuda/host_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace mydist::host_cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

// On the current GPU, and on no other.
const void* LoadedKernel() {
  static const int kernel = 0;
  cudaFuncAttributes attributes;
  EXPECT_EQ(cudaFuncGetAttributes(&attributes, &kernel), cudaSuccess);
  return &kernel;
}

TEST(HostCuda, FindsACallWithoutAGpu) {
  OnThread([] {
    const Complaints complaints;
    void* memory = nullptr;
    static_cast<void>(cudaMalloc(&memory, 10));
    EXPECT_THAT(complaints.texts(), ElementsAre(HasSubstr("cudaMalloc: no GPU is current")));
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  });
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

TEST(HostCuda, FindsAKernelThatWasNotLoadedToThisGpu) {
  OnThread([] {
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    const void* const kernel = LoadedKernel();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const cudaStream_t stream = NewStream();
    const Complaints complaints;
    EXPECT_EQ(Launch(kernel, stream, [] {}), cudaSuccess);
    EXPECT_THAT(complaints.texts(), ElementsAre(HasSubstr("not loaded")));
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
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

TEST(HostCuda, FindsACaptureThatAnotherThreadEnds) {
  OnThread([] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const cudaStream_t stream = NewStream();
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    OnThread([&] {
      EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
      const Complaints complaints;
      EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureWrongThread);
      EXPECT_THAT(complaints.texts(), ElementsAre(HasSubstr("another thread has begun it")));
    });
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

TEST(HostCuda, CountsTheNodesOfAGraphWhileItIsThere) {
  OnThread([] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const void* const kernel = LoadedKernel();
    const cudaStream_t stream = NewStream();
    uint8_t* const memory = NewMemory(100);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(Launch(kernel, stream, [] {}), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(memory, 1, 100, stream), cudaSuccess);
    EXPECT_EQ(Launch(kernel, stream, [] {}), cudaSuccess);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    size_t count = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
    EXPECT_EQ(count, 3u);
    EXPECT_EQ(TakeCensus().graphs, 1);
    const Complaints complaints;
    cudaGraphNode_t nodes[3] = {};
    EXPECT_EQ(cudaGraphGetNodes(graph, nodes, &count), cudaErrorNotSupported);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaErrorInvalidValue);
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaErrorInvalidValue);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaErrorInvalidValue);
    EXPECT_THAT(complaints.texts(),
                ElementsAre(HasSubstr("the nodes themselves"), HasSubstr("no such graph"),
                            HasSubstr("no such graph"), HasSubstr("no such graph")));
    EXPECT_EQ(TakeCensus().graphs, 0);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

TEST(HostCuda, TakesTheTimeBetweenEventsThatHaveOne) {
  OnThread([] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const void* const kernel = LoadedKernel();
    const cudaStream_t stream = NewStream();
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    ASSERT_EQ(cudaEventCreate(&begin), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&end, cudaEventDefault), cudaSuccess);
    std::atomic<bool> goes_on = false;
    EXPECT_EQ(cudaEventRecord(begin, stream), cudaSuccess);
    EXPECT_EQ(Launch(kernel, stream,
                     [&] {
                       while (!goes_on) std::this_thread::yield();
                       std::this_thread::sleep_for(std::chrono::milliseconds(20));
                     }),
              cudaSuccess);
    EXPECT_EQ(cudaEventRecord(end, stream), cudaSuccess);
    float ms = -1;
    EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaErrorNotReady);
    goes_on = true;
    EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
    EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaSuccess);
    EXPECT_GE(ms, 20.0f);
    EXPECT_EQ(cudaEventElapsedTime(&ms, end, begin), cudaSuccess);
    EXPECT_LE(ms, -20.0f);
    EXPECT_EQ(cudaEventDestroy(begin), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

TEST(HostCuda, FindsTimesThatNobodyTook) {
  OnThread([] {
    cudaEvent_t events[4] = {};
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    for (int i : {0, 1}) ASSERT_EQ(cudaEventCreate(&events[i]), cudaSuccess);
    events[2] = NewEvent();
    for (int i : {0, 2}) EXPECT_EQ(cudaEventRecord(events[i], nullptr), cudaSuccess);
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&events[3]), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(events[3], nullptr), cudaSuccess);
    const Complaints complaints;
    float ms = 0;
    for (int i : {1, 2, 3}) {
      EXPECT_EQ(cudaEventElapsedTime(&ms, events[0], events[i]), cudaErrorInvalidResourceHandle);
    }
    for (cudaEvent_t event : events) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    EXPECT_EQ(cudaEventElapsedTime(&ms, events[0], events[0]), cudaErrorInvalidResourceHandle);
    EXPECT_THAT(complaints.texts(),
                ElementsAre(HasSubstr("was not recorded"), HasSubstr("without timing"),
                            HasSubstr("events of two GPUs"), HasSubstr("no such event")));
  });
}

TEST(HostCuda, EndsTheProcessWhenNobodyCollects) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // A child made by fork has no CUDA.
  EXPECT_DEATH(static_cast<void>(cudaStreamDestroy(reinterpret_cast<cudaStream_t>(8))),
               "HostCuda: cudaStreamDestroy: no GPU is current");
}

TEST(HostCuda, IsOfNoUseInAChildMadeByFork) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) _exit(cudaGetDeviceCount(&count) == cudaErrorInitializationError ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(HostCuda, CountsWhatIsThere) {
  OnThread([] {
    ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
    const Census before = TakeCensus();
    const cudaStream_t stream = NewStream();
    const cudaEvent_t event = NewEvent();
    uint8_t* const memory = NewMemory(1);
    Census more = before;
    ++more.streams;
    ++more.events;
    ++more.device_blocks;
    EXPECT_EQ(TakeCensus(), more);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(TakeCensus(), before);
  });
}

TEST(HostCuda, CountsWhatIsAskedFor) {
  OnThread([] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const void* const kernel = LoadedKernel();
    const cudaStream_t stream = NewStream();
    uint8_t* const memory = NewMemory(100);
    uint8_t* const other = NewMemory(4);  // For the default stream, which waits for no other.
    const auto copy = [&](size_t bytes) {
      return cudaMemcpyAsync(memory, memory + 50, bytes, cudaMemcpyDeviceToDevice, stream);
    };
    Workload work = TakeWorkload();
    EXPECT_EQ(Launch(kernel, stream, [] {}), cudaSuccess);
    EXPECT_EQ(copy(50), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(other, kernel, 4, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(memory, 1, 100, stream), cudaSuccess);
    FailNext("cudaLaunchKernel", cudaErrorUnknown);
    EXPECT_NE(Launch(kernel, stream, [] {}), cudaSuccess);
    FailNext("cudaMemcpyAsync", cudaErrorUnknown);
    EXPECT_NE(copy(50), cudaSuccess);
    work.launches += 1;
    work.copies += 2;
    EXPECT_EQ(TakeWorkload(), work);
    EXPECT_EQ(cudaFree(other), cudaSuccess);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

}  // namespace
}  // namespace mydist::host_cuda
