// The streams of HostCuda: queues of work, each with a thread.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

namespace mydist::host_cuda {

// A point of a stream.
struct Mark {
  bool is_over = false;
  std::chrono::steady_clock::time_point when{};  // It was over.
};
using MarkPointer = std::shared_ptr<Mark>;

struct Item {
  std::function<void()> work{};
  MarkPointer waits_for{};
  MarkPointer ends{};
};

}  // namespace mydist::host_cuda

struct CUstream_st {
  int gpu = 0;
  bool waits_for_default = false;  // And the default stream for it.
  bool is_closing = false;         // Its thread ends when it has done all.
  std::deque<mydist::host_cuda::Item> items;
  CUgraph_st* capture = nullptr;  // What is put there goes into it.
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::thread::id capturer;
};
