// ConvertScratch: tables for launches with more segments than a kernel's parameters hold. Owned by
// the CudaDevice they are for, which is current in every call. Thread-safe. Never waits for the
// device but at its end.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"

namespace mydist::cuda {

// Room for segments on both sides.
struct ConvertTable {
  void* pinned = nullptr;
  void* memory = nullptr;  // Of the device.
  int64_t capacity = 0;    // Segments.
  cudaEvent_t over = nullptr;
  bool is_taken = false;
};

class ConvertScratch {
 public:
  // For the current device. Loads the kernels: later that might have to wait for what runs then.
  static Result<std::unique_ptr<ConvertScratch>> Create();
  // Waits for what uses the tables.
  ~ConvertScratch();
  ConvertScratch(const ConvertScratch&) = delete;
  ConvertScratch& operator=(const ConvertScratch&) = delete;

  int processor_count() const { return processor_count_; }

  // A table for at least so many segments that nobody uses; the caller's until Return. Null when
  // too many are in use. Errors: kInternal.
  Result<ConvertTable*> Take(int64_t segment_count);
  // The table's users are those that are on `stream` now. Errors: kInternal; nobody gets it again.
  Status Return(ConvertTable& table, cudaStream_t stream);

 private:
  // Tables in use at once, on all streams; one costs some 100 KiB.
  static constexpr size_t kMaxTables = 16;

  explicit ConvertScratch(int processor_count) : processor_count_(processor_count) {}

  const int processor_count_;
  Mutex mutex_;
  std::array<ConvertTable, kMaxTables> tables_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::cuda
