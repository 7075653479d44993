// DeviceBytes: memory of the current GPU for a test, exactly as large as what lies in it, so that
// compute-sanitizer sees an access beyond.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace mydist::testing {

#define MYDIST_ASSERT_CUDA(call)                                                         \
  do {                                                                                   \
    const cudaError_t answered_ = call;                                                  \
    ASSERT_EQ(answered_, cudaSuccess) << #call << ": " << cudaGetErrorString(answered_); \
  } while (false)

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t size) : size_(size) {
    const cudaError_t error = cudaMalloc(&memory_, size_ > 0 ? size_ : 1);
    EXPECT_EQ(error, cudaSuccess) << size << " bytes: " << cudaGetErrorString(error);
  }
  explicit DeviceBytes(const std::vector<uint8_t>& content) : DeviceBytes(content.size()) {
    Fill(content);
  }
  ~DeviceBytes() { static_cast<void>(cudaFree(memory_)); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  uint8_t* data() { return static_cast<uint8_t*>(memory_); }

  void Fill(const std::vector<uint8_t>& content) {
    EXPECT_EQ(cudaMemcpy(memory_, content.data(), content.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
    // The copy is on the default stream, for which the tests' own do not wait.
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  // What lies there when all streams are done.
  std::vector<uint8_t> Content() const {
    std::vector<uint8_t> content(size_);
    const cudaError_t error = cudaDeviceSynchronize();
    EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
    EXPECT_EQ(cudaMemcpy(content.data(), memory_, size_, cudaMemcpyDeviceToHost), cudaSuccess);
    return content;
  }

 private:
  const size_t size_;
  void* memory_ = nullptr;
};

}  // namespace mydist::testing
